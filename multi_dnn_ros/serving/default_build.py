"""What makes and checks pipelines unless a test or a caller brings its own; named without importing PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multi_dnn_ros.settings.schema import NodeConfig

#: Modules that :func:`build` and :func:`check` need, which take seconds to import; behind a colon: a function to call.
MODULES = ("multi_dnn_ros.pipeline.build", "multi_dnn_ros.pipeline.settings_check:import_registries")


def modules_of(make: Callable[..., Any]) -> tuple[str, ...]:
    """What an engine process imports before it is asked to configure with `make`: that module, or its `modules`.

    A build that wraps another has that attribute.
    """
    if make is build:
        return MODULES
    return getattr(make, "modules", (make.__module__,))


def build(config: NodeConfig, progress: Callable[[str], None]) -> Any:
    """The Pipeline of :func:`multi_dnn_ros.pipeline.build.build`."""
    from multi_dnn_ros.pipeline.build import build as build_pipeline

    return build_pipeline(config, progress)


def check(config: NodeConfig) -> Sequence[str]:
    """The problems that :func:`multi_dnn_ros.pipeline.settings_check.check_settings` finds, a line each."""
    from multi_dnn_ros.pipeline.settings_check import check_settings

    return check_settings(config).problems
