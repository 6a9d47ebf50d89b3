"""``python -m multi_dnn_ros.training`` with a small SqueezeNet."""

from __future__ import annotations

import narrow_squeezenet

from multi_dnn_ros.training.__main__ import main

__all__ = ["main"]

narrow_squeezenet.install()
