"""What one thread prints to standard error is captured; what the others print is not."""

from __future__ import annotations

import sys
import threading

import pytest

from multi_dnn_ros.common.captured_stderr import captured_stderr


def test_only_the_text_of_the_own_thread_is_captured(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    with captured_stderr() as captured:
        print("own", file=sys.stderr)
        other = threading.Thread(target=lambda: print("other", file=sys.stderr))
        other.start()
        other.join()
    assert sys.stderr is before
    assert captured.getvalue() == "own\n"
    assert capsys.readouterr().err == "other\n"


def test_the_stream_is_restored_after_an_error() -> None:
    before = sys.stderr
    with pytest.raises(ValueError, match="broken"), captured_stderr():
        raise ValueError("broken")
    assert sys.stderr is before
