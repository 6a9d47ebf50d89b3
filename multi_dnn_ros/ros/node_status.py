"""The statuses of the node itself, of the capacity and of the engines; docs/diagnostics.md lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticStatus

from multi_dnn_ros.ros.diagnostics import ERROR, OK, WARN, DiagnosticsReport
from multi_dnn_ros.ros.machine import versions
from multi_dnn_ros.serving.capacity import Capacity
from multi_dnn_ros.serving.descriptions import EngineDescription, EngineStatus, Level, Progress
from multi_dnn_ros.settings.schema import NodeConfig

_LEVELS = {Level.OK: OK, Level.WARN: WARN, Level.ERROR: ERROR}


@dataclass(frozen=True)
class NodeView:
    """The data of the node's status.

    progress: only while configuring. config: from the start of configuring. description: only while configured.
    failure: why the last transition failed; empty: it did not. hung: threads that did not end in time. ended:
    threads that ended with an error. memory:
    bytes by name.
    """

    state: str
    progress: Progress | None
    config: NodeConfig | None
    description: EngineDescription | None
    failure: str
    hung: Sequence[str]
    ended: Sequence[str]
    memory: Mapping[str, int]


def node_status(report: DiagnosticsReport, view: NodeView) -> DiagnosticStatus:
    """OK while configured, otherwise WARN. ERROR after a failed transition, or
    if threads hang or have ended.
    """
    config, description = view.config, view.description
    values: dict[str, object] = {"state": view.state, **versions()}
    if config is not None and description is not None:
        values |= {
            **description.versions,
            "device": description.device,
            "workers": description.workers,
            "policy": config.policy,
            "DNNs": ", ".join(config.dnns),
            "results": ", ".join(
                f"{dnn}{output and '/'}{output} ({result.result_kind})"
                for dnn, described in description.dnns.items()
                for output, result in described.results.items()
            ),
            "cameras": ", ".join(config.cameras),
        }
    level, text = _level_and_text(view)
    return report.status("node", level, text, {**values, **view.memory})


def capacity_statuses(report: DiagnosticsReport, capacity: Capacity | None) -> list[DiagnosticStatus]:
    """Whether the DNNs fit their devices; empty while there is no verdict (not configured, not measured, or settings
    swapped since).
    """
    if capacity is None:
        return []
    return [report.status("capacity", OK if capacity.fits else WARN, capacity.text, capacity.values)]


def engine_statuses(report: DiagnosticsReport, statuses: Sequence[EngineStatus]) -> list[DiagnosticStatus]:
    """The statuses of the engines as messages."""
    return [report.status(it.name, _LEVELS[it.level], it.text, it.values) for it in statuses]


def status_text(view: NodeView) -> str:
    """The text of the node's status; a failure may have several lines."""
    return _level_and_text(view)[1]


def progress_text(progress: Progress) -> str:
    """`DNN 2 of 3, compiling job 3 of 4, about 40 s left`; `3 of 3 DNNs ready, ...`."""
    parts = [progress.text]
    if progress.ready < progress.total:
        parts.insert(0, f"DNN {progress.ready + 1} of {progress.total}")
    elif progress.total:
        parts.insert(0, f"{progress.ready} of {progress.total} DNNs ready")
    if progress.left_s is not None:
        parts.append(f"about {progress.left_s:.0f} s left")
    return ", ".join(parts)


def _level_and_text(view: NodeView) -> tuple[bytes, str]:
    if view.failure:
        return ERROR, view.failure
    if view.hung:
        return ERROR, f"threads hang: {', '.join(view.hung)}"
    if view.ended:
        return ERROR, f"threads ended with an error: {', '.join(view.ended)}"
    text = view.state if view.progress is None else f"configuring: {progress_text(view.progress)}"
    return (OK if view.progress is None and view.description is not None else WARN), text
