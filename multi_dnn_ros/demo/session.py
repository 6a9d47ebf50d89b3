"""Our commands as processes on a ROS domain of their own, observed by a node of this process."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.processes import interrupts
from multi_dnn_ros.demo.children import Child, loopback_environment, reserved_domain
from multi_dnn_ros.ros.middleware import configure

if TYPE_CHECKING:
    from typing_extensions import Self

NODE = "/multi_dnn"
DIAGNOSTICS = "/diagnostics"
_REASON = re.compile(r"^dropped: (\w+)$")


class ProcessEnded(CommandError):
    """A process of a session has ended before it was stopped; the message has its name, exit code and log."""


class Session(ExitStack):
    """Context manager for one node and its cameras, all on loopback DDS.

    folder: for the logs; it must exist when the session is entered. observer: the rclpy node of this process, which is
    served while :meth:`until` or :meth:`spin` runs. statuses: the latest diagnostics by name, see :func:`statuses_of`.
    reports: their number. reported_s: time of the latest one, system clock.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.statuses: dict[str, dict[str, Any]] = {}
        self.reports = 0
        self.reported_s = 0.0
        self._expected: list[Child] = []  # processes that must not end by themselves

    def __enter__(self) -> Self:
        self.enter_context(interrupts())
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def _open(self) -> None:
        domain = self.enter_context(reserved_domain())
        os.environ.update(loopback_environment(domain))  # the processes inherit it
        configure()
        rclpy.init(args=[], domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
        self.callback(rclpy.try_shutdown)
        self.observer = rclpy.create_node("multi_dnn_observer")
        self.callback(self.observer.destroy_node)
        self._executor = SingleThreadedExecutor()
        self.callback(self._executor.shutdown)
        self._executor.add_node(self.observer)
        self.observer.create_subscription(DiagnosticArray, DIAGNOSTICS, self._on_diagnostics, QoSProfile(depth=50))

    def start(self, name: str, arguments: Sequence[str], log: str = "", *, may_end: bool = False) -> Child:
        """Start a ``multi-dnn`` command that ends with the session. name: for messages. log: name of its log, if it is
        another one. may_end: whether it may end by itself.
        """
        child = Child(name, arguments, self.folder / f"{log or name}.log")
        self.callback(child.stop)
        if not may_end:
            self._expected.append(child)
        return child

    def stop(self, child: Child, timeout_s: float = 10.0) -> bool:
        """Stop a process; False if it had to be killed."""
        self._expected = [each for each in self._expected if each is not child]
        return child.stop(timeout_s)

    def spin_once(self, timeout_s: float = 0.1) -> None:
        """Serve the observer. Raises ProcessEnded, and CommandError if the node reports that it was not configured."""
        self._executor.spin_once(timeout_sec=timeout_s)
        for child in self._expected:
            if (code := child.exit_code()) is not None:
                raise ProcessEnded(f"the {child.name} process ended with exit code {code}; see {child.log}")
        if self.value("node", "state") == "unconfigured" and self.statuses["node"]["level"] == DiagnosticStatus.ERROR:
            raise CommandError(
                f"the node was not configured: {self.value('node', 'message')} (log: {self.folder / 'node.log'})"
            )

    def spin(self, seconds: float) -> None:
        """Observe for `seconds`."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            self.spin_once(min(0.1, end - now))

    def until(self, condition: Callable[[], object], limit_s: float) -> bool:
        """Observe until the condition holds; False on timeout."""
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                return False
            self.spin_once()
        return True

    def settle(self, limit_s: float) -> bool:
        """Observe until two consecutive reports, both made from now on, show no frame in progress; False on timeout."""
        quiet, seen, begin_s = 0, self.reports, time.time()

        def settled() -> bool:
            nonlocal quiet, seen
            if self.reports > seen and self.reported_s >= begin_s:  # older reports may still be in our queue
                pending = sum(int(values.get("pending", 0)) for values in self.statuses.values())
                quiet, seen = (quiet + 1 if pending == 0 else 0), self.reports
            return quiet >= 2

        return self.until(settled, limit_s)

    def value(self, status: str, key: str) -> str | None:
        """A value of the latest diagnostics, for a status such as `node`, `camera front`, `lane on front`."""
        found: str | None = self.statuses.get(status, {}).get(key)
        return found

    def _on_diagnostics(self, message: Any) -> None:
        self.statuses |= statuses_of(message)
        self.reports += 1
        self.reported_s = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9


def statuses_of(message: Any) -> dict[str, dict[str, Any]]:
    """The statuses in a DiagnosticArray of a node, by name without the node's: their values, `level` and `message`."""
    return {
        status.name.partition(": ")[2]: {
            **{item.key: item.value for item in status.values}, "level": status.level, "message": status.message,
        }
        for status in message.status
    }  # fmt: skip


def frame_counts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Offered, published, pending and dropped (by reason, without zeros), from the values of a stream's status."""
    dropped = {m[1]: int(value) for key, value in values.items() if (m := _REASON.match(key)) and int(value)}
    return {**{key: int(values.get(key, 0)) for key in ("offered", "published", "pending")}, "dropped": dropped}
