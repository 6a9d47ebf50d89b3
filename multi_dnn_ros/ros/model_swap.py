"""Changes of parameters that replace the engine process of DNNs while the node serves (docs/isolation.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from rclpy.lifecycle import LifecycleNode

from multi_dnn_ros.ros.diagnostics import OK, WARN, Status
from multi_dnn_ros.ros.served_dnns import ServedDnns
from multi_dnn_ros.serving.descriptions import DnnDescription
from multi_dnn_ros.serving.groups import Swap
from multi_dnn_ros.settings.forms import shown


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
        self._requested: dict[str, Any] = {}  # values by the name of the parameter, until their swap begins
        self._changes: dict[str, Any] = {}  # of the latest swap
        self._swap: Swap | None = None  # the latest one
        self._under_way = False
        self._begin_s = 0.0
        self._level, self._text = OK, ""
        # Runs _step after the request of parameters is complete, and never at the same time as another request.
        self._wake = node.create_guard_condition(self._step)

    def refusal(self) -> str:
        """Why no swap is possible now; empty: a swap is possible."""
        if self._served.config.isolation == "none":
            return "with isolation 'none' there is no engine process that could be replaced"
        return "another model swap is under way" if self._under_way else ""

    def request(self, name: str, value: Any) -> None:
        """The parameter `dnn.<dnn>....` was set. Without effect if the value is served, unless another is requested."""
        if self._requested or self._value(name) != value:
            self._requested[name] = value
            self._wake.trigger()

    def end(self) -> None:
        """Begin nothing more; a swap under way ends with the host."""
        self._requested, self._under_way = {}, False

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
            if self._requested:
                self._begin()
            elif self._under_way and (swap := self._swap) is not None:
                if failure := swap.failure or (self._kind_problem(swap.descriptions()) if swap.is_prepared else ""):
                    swap.cancel("the new settings cannot be used")  # on other devices, too
                    self._report(WARN, f"failed, the previous settings stay in use: {failure}")
                    self._restore({name: self._value(name) for name in self._changes})
                elif swap.is_prepared and not swap.commit():
                    self._wake.trigger()  # its state has just changed: check again
                elif not swap.is_under_way:
                    self._served.adopt(self._by_dnn(), swap.descriptions())
                    took_s = time.monotonic() - self._begin_s
                    self._report(OK, f"{', '.join(self._by_dnn())} took over after {took_s:.1f} s")

    def _begin(self) -> None:
        changes = {name: value for name, value in self._requested.items() if value != self._value(name)}
        self._requested = {}
        if changes:
            self._changes, self._under_way, self._begin_s = changes, True, time.monotonic()
            self._level, self._text = OK, f"preparing {', '.join(self._by_dnn())}"
            self._swap = self._served.host.swap(self._by_dnn(), self._wake.trigger)
            self._log.info(f"model swap: preparing an engine process with {self._listed()}")

    def _report(self, level: bytes, text: str) -> None:
        """The swap has ended."""
        self._under_way = False
        self._level, self._text = level, text
        if level == OK:  # two calls, because rclpy allows only one level per calling line
            self._log.info(f"model swap: {text}: {self._listed()}")
        else:
            self._log.error(f"model swap: {text}: {self._listed()}")

    def _value(self, name: str) -> Any:
        """The value of a parameter that is served."""
        _, dnn, *path = name.split(".")
        settings = self._served.config.dnns[dnn]
        return getattr(settings.outputs[path[1]] if len(path) > 1 else settings, path[-1])

    def _by_dnn(self) -> dict[str, dict[str, Any]]:
        """The changes by DNN and the rest of the parameter's name."""
        found: dict[str, dict[str, Any]] = {}
        for name, value in self._changes.items():
            _, dnn, field = name.split(".", 2)
            found.setdefault(dnn, {})[field] = value
        return found

    def _listed(self) -> str:
        """`dnn.object.model = 'a.onnx', dnn.object.labels = ['cone']`."""
        return ", ".join(f"{name} = {shown(value)}" for name, value in self._changes.items())

    def _kind_problem(self, new: Mapping[str, DnnDescription]) -> str:
        """Why new settings cannot be served: a DNN's results would not have the kind of its topics. Empty: they can."""
        for dnn in self._by_dnn():
            served = self._served.description.dnns
            before, after = ({name: it.result_kind for name, it in dnns[dnn].results.items()} for dnns in (served, new))
            if before != after:
                return (
                    f"the results of {dnn} would be {', '.join(after.values())}, but its topics are those of "
                    f"{', '.join(before.values())}; clean up the node, set the parameter, and configure again"
                )
        return ""
