"""Fixtures of the tests of planning; test/profiling shares them."""

from profiling_fakes import few_trees  # noqa: F401
