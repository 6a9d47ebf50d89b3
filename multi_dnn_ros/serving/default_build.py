"""The default function that builds a pipeline; importing this module does not import PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multi_dnn_ros.backends.host import has_gpu_driver
from multi_dnn_ros.settings.schema import NodeConfig

#: What an engine process imports before it uses :func:`build`, which takes seconds; after a colon, a function to call.
MODULES: tuple[str, ...] = ("multi_dnn_ros.pipeline.build", "multi_dnn_ros.pipeline.settings_check:import_registries")
if has_gpu_driver():  # these import PyTorch
    MODULES += ("multi_dnn_ros.pipeline.torch_task", "multi_dnn_ros.models.trace:import_export")


def build(config: NodeConfig, progress: Callable[[str], None]) -> Any:
    """The Pipeline that :func:`multi_dnn_ros.pipeline.build.build` returns."""
    from multi_dnn_ros.pipeline.build import build as build_pipeline

    return build_pipeline(config, progress)
