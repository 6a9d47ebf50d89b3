"""Publishes the statuses of the node on /diagnostics, in every state of its life cycle."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode

from multi_dnn_ros.ros.diagnostics import DiagnosticsReport
from multi_dnn_ros.ros.log_throttle import LogThrottle
from multi_dnn_ros.ros.parameters import NodeParameters


class NodeDiagnostics:
    """The publisher and its timer. statuses: makes the statuses with the given report."""

    def __init__(
        self,
        node: LifecycleNode,
        parameters: NodeParameters,
        statuses: Callable[[DiagnosticsReport], Iterable[DiagnosticStatus]],
    ) -> None:
        self._node = node
        self._parameters = parameters
        self._statuses = statuses
        self._throttle = LogThrottle()
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._report = self._new_report("")
        self._timer = self._new_timer()

    def configured(self, hardware: str) -> None:
        """The node is configured: apply its parameters. hardware: the new hardware_id."""
        self._report = self._new_report(hardware)
        self._node.destroy_timer(self._timer)
        self._timer = self._new_timer()

    def activated(self) -> None:
        """The statistics count from 0 again."""
        self._report.restart()

    def _new_report(self, hardware: str) -> DiagnosticsReport:
        name = self._node.get_fully_qualified_name().lstrip("/")
        return DiagnosticsReport(name, hardware, self._parameters.value("stale_after_s"))

    def _new_timer(self) -> Any:
        # On the steady clock, because simulated time may be paused.
        clock = Clock(clock_type=ClockType.STEADY_TIME)
        return self._node.create_timer(self._parameters.value("diagnostics_period_s"), self._publish, clock=clock)

    def _publish(self) -> None:
        try:
            stamp = self._node.get_clock().now().to_msg()
            self._publisher.publish(self._report.message(stamp, self._statuses(self._report)))
        except Exception:  # an error in the diagnostics must not end the node
            more = self._throttle.passes("diagnostics")
            if more is not None:
                self._node.get_logger().error(
                    "the diagnostics were not published; the next attempt follows after diagnostics_period_s: "
                    f"{traceback.format_exc()}{more}"
                )
