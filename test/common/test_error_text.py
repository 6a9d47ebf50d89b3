"""Errors summarized in one line."""

from __future__ import annotations

import pytest

from multi_dnn_ros.common.error_text import summarize_error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such layer"), "no such layer"),
        (RuntimeError("\n CUDA error\nCompile with TORCH_USE_CUDA_DSA"), "CUDA error"),
        (RecursionError(), "RecursionError"),
        (OSError(" \n"), "OSError"),
    ],
)
def test_the_summary_is_the_first_line_or_the_type(error: Exception, reason: str) -> None:
    assert summarize_error(error) == reason
