"""The default functions that build and check a pipeline; importing this module does not import PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multi_dnn_ros.settings.schema import NodeConfig

#: Modules that :func:`build` and :func:`check` need and that take seconds to import; after a colon, a function to call.
MODULES = (
    "multi_dnn_ros.pipeline.build",
    "multi_dnn_ros.pipeline.settings_check:import_registries",
    "multi_dnn_ros.graph.trace:import_export",
)


def modules_of(build_function: Callable[..., Any]) -> tuple[str, ...]:
    """The modules that an engine process imports before it is configured with `build_function`.

    These are the function's own module or, for a function that wraps another build, its attribute `modules`.
    """
    if build_function is build:
        return MODULES
    return getattr(build_function, "modules", (build_function.__module__,))


def build(config: NodeConfig, progress: Callable[[str], None]) -> Any:
    """The Pipeline that :func:`multi_dnn_ros.pipeline.build.build` returns."""
    from multi_dnn_ros.pipeline.build import build as build_pipeline

    return build_pipeline(config, progress)


def check(config: NodeConfig) -> Sequence[str]:
    """The problems found by :func:`multi_dnn_ros.pipeline.settings_check.check_settings`, one line each."""
    from multi_dnn_ros.pipeline.settings_check import check_settings

    return check_settings(config).problems
