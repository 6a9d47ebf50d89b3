"""Fixtures of the tests of profiling; test/planning shares them."""

from profiling_fakes import few_trees  # noqa: F401
