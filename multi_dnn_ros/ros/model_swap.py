"""Changes of parameters that replace the engine process of DNNs while the node serves (docs/isolation.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from rclpy.lifecycle import LifecycleNode

from multi_dnn_ros.ros.diagnostics import OK, WARN, Status
from multi_dnn_ros.ros.served_dnns import ServedDnns
from multi_dnn_ros.serving.descriptions import Changes, DnnDescription
from multi_dnn_ros.serving.groups import Swap
from multi_dnn_ros.settings.parameter_fields import shown


class ModelSwaps:
    """The swaps of a configured node, one at a time. All parameters that are set in one request are one swap.

    lock: held while the served settings change. restore: sets parameters, by name, back to the values that are served.
    """

    def __init__(
        self,
        node: LifecycleNode,
        served: ServedDnns,
        lock: AbstractContextManager[object],
        restore: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._node, self._log = node, node.get_logger()
        self._served = served
        self._lock = lock
        self._restore = restore
        self._changes: dict[str, dict[str, Any]] = {}  # settings of the latest swap
        self._swap: Swap | None = None  # the latest swap
        self._under_way = False
        self._begin_s = 0.0
        self._level, self._text = OK, ""
        # Runs _step after the request of parameters is complete, and never at the same time as another request.
        self._wake = node.create_guard_condition(self._step)

    def refusal(self) -> str:
        """Why no swap is possible now; empty: a swap is possible."""
        if self._served.config.isolation == "none":
            return "with isolation 'none' there is no engine process that could be replaced"
        return "another model swap is under way" if self._under_way and self._swap is not None else ""

    def request(self, name: str, value: Any) -> None:
        """The parameter `dnn.<dnn>....` was set."""
        _, dnn, field = name.split(".", 2)
        if self._value(dnn, field) == value:
            return
        if not self._under_way:
            self._changes, self._swap, self._under_way = {}, None, True
        self._changes.setdefault(dnn, {})[field] = value
        self._wake.trigger()

    def end(self) -> None:
        """Begin nothing more; a swap under way ends with the host."""
        self._under_way = False

    def close(self) -> None:
        """To be called when the host was closed, which may use the guard condition."""
        self._node.destroy_guard_condition(self._wake)

    def statuses(self) -> Iterator[Status]:
        """The status of the latest swap; none before the first one."""
        swap, text = self._swap, self._text
        if swap is not None:
            if self._under_way and swap.progress:
                text += f": {swap.progress}"
            yield Status("model swap", self._level, text, {"settings": self._listed()})

    def _step(self) -> None:
        with self._lock:
            if not self._under_way:
                return
            if self._swap is None:
                self._begin_s = time.monotonic()
                self._level, self._text = OK, f"preparing {', '.join(self._changes)}"
                self._swap = self._served.host.swap(self._changes, self._wake.trigger)
                self._log.info(f"model swap: preparing an engine process with {self._listed()}")
                return
            if self._swap.failure:
                self._fail(self._swap, self._swap.failure)
            elif self._swap.is_prepared:
                self._commit(self._swap, self._swap.descriptions())

    def _commit(self, swap: Swap, dnns: Mapping[str, DnnDescription]) -> None:
        if problem := _kind_problem(self._changes, self._served.description.dnns, dnns):
            self._fail(swap, problem)
        elif not swap.commit():
            self._wake.trigger()  # its state has just changed: check again
        else:
            self._under_way = False
            self._served.adopt(self._changes, dnns)
            self._text = f"{', '.join(self._changes)} took over after {time.monotonic() - self._begin_s:.1f} s"
            self._log.info(f"model swap: {self._text}: {self._listed()}")

    def _fail(self, swap: Swap, reason: str) -> None:
        swap.cancel("the new settings cannot be used")  # on other devices, too
        self._under_way = False
        self._level, self._text = WARN, f"failed, the previous settings stay in use: {reason}"
        self._log.error(f"model swap failed, the previous settings stay in use: {self._listed()}: {reason}")
        changed = [(dnn, name) for dnn, values in self._changes.items() for name in values]
        self._restore({f"dnn.{dnn}.{name}": self._value(dnn, name) for dnn, name in changed})

    def _value(self, dnn: str, name: str) -> Any:
        """The value of a parameter that is served."""
        settings = self._served.config.dnns[dnn]
        if not name.startswith("output."):
            return getattr(settings, name)
        _, output, field = name.split(".", 2)
        return getattr(settings.outputs[output], field)

    def _listed(self) -> str:
        """`dnn.object.model = 'a.onnx', dnn.object.labels = ['cone']`."""
        return ", ".join(
            f"dnn.{dnn}.{name} = {shown(value)}"
            for dnn, values in self._changes.items()
            for name, value in values.items()
        )


def _kind_problem(changes: Changes, old: Mapping[str, DnnDescription], new: Mapping[str, DnnDescription]) -> str:
    """Why new settings cannot be served: a DNN's results would not have the kind of its topics. Empty: no such DNN."""
    for dnn in changes:
        before, after = ({name: it.result_kind for name, it in found[dnn].results.items()} for found in (old, new))
        if before != after:
            return (
                f"the results of {dnn} would be {', '.join(after.values())}, but its topics are those of "
                f"{', '.join(before.values())}; clean up the node, set the parameter, and configure again"
            )
    return ""
