"""Changes of parameters that replace the engine process of DNNs while the node serves (docs/isolation.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode

from multi_dnn_ros.ros.diagnostics import OK, WARN, DiagnosticsReport
from multi_dnn_ros.ros.node_status import progress_text
from multi_dnn_ros.ros.served import Served
from multi_dnn_ros.serving.descriptions import Changes, DnnDescription
from multi_dnn_ros.serving.swap import Swap
from multi_dnn_ros.settings.parameter_fields import shown
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig


@dataclass(frozen=True)
class SwapHooks:
    """Functions of the node, called in the executor's thread.

    served: returns what is served; None: the node is not configured. taken_over: called with the settings that
    have just taken effect and the new descriptions of their DNNs. keep: called when the parameters have the served
    values. restore: sets the parameters back to the served values.
    """

    served: Callable[[], Served | None]
    taken_over: Callable[[Changes, Mapping[str, DnnDescription]], None]
    keep: Callable[[], None]
    restore: Callable[[], None]


class ModelSwaps:
    """The swaps of a node, from changed parameters to the outcome. To be used in the executor's thread.

    All parameters that are set in one request are one swap. A change while a swap is under way replaces it by one with
    all requested values that are not served yet.
    """

    def __init__(self, node: LifecycleNode, hooks: SwapHooks) -> None:
        self._log = node.get_logger()
        self._hooks = hooks
        self._wanted: dict[tuple[str, str], Any] = {}  # requested values, by DNN and name of the parameter
        self._has_changed = False
        self._changes: Changes = {}  # settings of the latest swap
        self._swap: Swap | None = None  # the latest swap
        self._under_way = False
        self._begin_s = 0.0
        self._gaps_ms: dict[str, float] = {}
        self._status: tuple[bytes, str] | None = None
        # Runs _step in the executor's thread, after the request of parameters is complete.
        self._wake = node.create_guard_condition(self._step)

    def refusal(self) -> str:
        """Why no swap is possible now; empty: a swap is possible."""
        served = self._hooks.served()
        if served is None:
            return "configuring is not complete"
        if served.config.isolation == "none":
            return "with isolation 'none' there is no engine process that could be replaced"
        return ""

    def request(self, name: str, value: Any) -> None:
        """A parameter `dnn.<dnn>....` has changed."""
        _, dnn, field = name.split(".", 2)
        self._wanted[dnn, field] = value
        self._has_changed = True
        self._wake.trigger()

    def end(self) -> None:
        """The node is not configured any more, and its host was closed, which has ended a swap under way."""
        self._wanted.clear()
        self._has_changed = self._under_way = False
        self._swap = self._status = None

    def statuses(self, report: DiagnosticsReport) -> list[DiagnosticStatus]:
        """The status of the latest swap; empty before the first swap of this configuration."""
        swap, status = self._swap, self._status
        if status is None:
            return []
        level, text = status
        if swap is not None and self._under_way:
            progress = swap.progress
            text += f": {progress_text(progress)}" if progress is not None else ""
        values: dict[str, object] = {"settings": _listed(self._changes)}
        values |= {f"gap of {dnn} (ms)": f"{gap_ms:.0f}" for dnn, gap_ms in self._gaps_ms.items()}
        return [report.status("model swap", level, text, values)]

    def _step(self) -> None:
        served = self._hooks.served()
        if served is None:
            return
        if self._has_changed:
            self._has_changed = False
            changes = _differences(self._wanted, served.config)
            if not changes and not self._under_way:  # the served values were set again
                self._wanted.clear()
                self._hooks.keep()
            elif not self._under_way or changes != self._changes:
                self._begin(served, changes)
        if self._swap is not None and self._under_way:
            if self._swap.failure:
                self._fail(self._swap.failure)
            elif self._swap.is_prepared:
                self._commit(served, self._swap, self._swap.descriptions())
        elif self._swap is not None:
            self._report_gaps(self._swap)

    def _begin(self, served: Served, changes: Changes) -> None:
        """Begin a swap, which replaces the one under way. Without changes, the one under way is only cancelled."""
        if self._swap is not None and self._under_way:
            self._swap.cancel("the parameters have changed again")
            self._log.info(f"model swap cancelled, because parameters have changed again: {_listed(self._changes)}")
        self._under_way, self._swap = False, None
        self._changes = changes
        if not changes:
            self._wanted.clear()
            self._hooks.keep()
            self._status = OK, "cancelled: the parameters have the served values again"
            return
        self._gaps_ms, self._begin_s = {}, time.monotonic()
        self._swap = served.host.swap(changes, self._wake.trigger)
        self._under_way = True
        self._status = OK, f"preparing {', '.join(changes)}"
        self._log.info(f"model swap: preparing an engine process with {_listed(changes)}")

    def _commit(self, served: Served, swap: Swap, dnns: Mapping[str, DnnDescription]) -> None:
        problem = _kind_problem(self._changes, served.description.dnns, dnns)
        if problem:
            swap.cancel("its results are of another kind")
            self._fail(problem)
        elif not swap.commit():
            self._wake.trigger()  # its state has just changed: check again
        else:
            self._under_way = False
            self._wanted.clear()
            self._hooks.keep()
            self._hooks.taken_over(self._changes, dnns)
            text = f"{', '.join(self._changes)} took over after {time.monotonic() - self._begin_s:.1f} s"
            self._status = OK, text
            self._log.info(f"model swap: {text}: {_listed(self._changes)}")
            self._report_gaps(swap)

    def _fail(self, reason: str) -> None:
        if self._swap is not None:
            self._swap.cancel("the new settings cannot be used")  # on other devices, too
        self._under_way = False
        self._wanted.clear()
        self._status = WARN, f"failed, the previous settings stay in use: {reason}"
        self._log.error(f"model swap failed, the previous settings stay in use: {_listed(self._changes)}: {reason}")
        self._hooks.restore()

    def _report_gaps(self, swap: Swap) -> None:
        for dnn, gap_ms in list(swap.gaps_ms.items()):
            if dnn not in self._gaps_ms:
                self._log.info(
                    f"model swap: {dnn}: {gap_ms:.0f} ms between the last result with the previous settings and the "
                    "first one with the new ones"
                )
            self._gaps_ms[dnn] = gap_ms


def _differences(wanted: Mapping[tuple[str, str], Any], config: NodeConfig) -> dict[str, dict[str, Any]]:
    """The wanted values that are not served, by DNN and name of the parameter."""
    found: dict[str, dict[str, Any]] = {}
    for (dnn, name), value in wanted.items():
        if dnn in config.dnns and _value(config.dnns[dnn], name) != value:
            found.setdefault(dnn, {})[name] = value
    return found


def _value(settings: DnnConfig, name: str) -> Any:
    if not name.startswith("output."):
        return getattr(settings, name)
    _, output, field = name.split(".", 2)
    return getattr(settings.outputs[output], field)


def _listed(changes: Changes) -> str:
    """`dnn.object.model = 'a.onnx', dnn.object.labels = ['cone']`."""
    return ", ".join(
        f"dnn.{dnn}.{name} = {shown(value)}" for dnn, values in changes.items() for name, value in values.items()
    )


def _kind_problem(changes: Changes, old: Mapping[str, DnnDescription], new: Mapping[str, DnnDescription]) -> str:
    """Why new settings cannot be served: a DNN's results would not have the kind of its topics. Empty: no such DNN."""
    for dnn in changes:
        kinds = [{name: it.result_kind for name, it in found[dnn].results.items()} for found in (old, new)]
        if kinds[0] != kinds[1]:
            before, after = (", ".join(each.values()) for each in kinds)
            return (
                f"the results of {dnn} would be {after}, but its topics are those of {before}; to change them, "
                "deactivate and clean up the node, set the parameter, and configure again"
            )
    return ""
