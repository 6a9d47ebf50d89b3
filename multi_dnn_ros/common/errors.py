"""Errors that the command tells in one line."""

from __future__ import annotations


class UsageError(Exception):
    """The arguments contradict each other or lack something; the message says which. Exit code 2."""


class CommandError(Exception):
    """The work failed for a reason that is told in one line. Exit code 1."""
