"""A kernel that writes to an address of nobody; Triton wants its source in a file."""

import triton
import triton.language as tl


@triton.jit
def illegal_store(x):
    tl.store(x + 1_000_000_000_000, 1.0)
