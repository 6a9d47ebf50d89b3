"""Errors that the command line reports in one line."""

from __future__ import annotations


class UsageError(Exception):
    """Contradictory or missing arguments; the message says which. Exit code 2."""


class CommandError(Exception):
    """The command failed; the message says why in one line. Exit code 1."""
