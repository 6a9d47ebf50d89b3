"""The node: its life cycle, and its statuses on /diagnostics."""

from __future__ import annotations

import platform
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from lifecycle_msgs.srv import ChangeState
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.timer import Timer

from multi_dnn_ros.ros.board import BoardMonitor
from multi_dnn_ros.ros.diagnostics import ERROR, OK, VERSIONS, WARN, Status
from multi_dnn_ros.ros.model_swap import ModelSwaps
from multi_dnn_ros.ros.parameters import NodeParameters
from multi_dnn_ros.ros.served_dnns import ServedDnns
from multi_dnn_ros.serving.descriptions import Build, Cancelled, ConfigureError, build_pipeline
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.settings.schema import STOP_TIMEOUT_S

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
#: Maximum time for a transition in progress when the process ends, in addition to that for frames in progress.
_END_S = 3.0
_POLL_S = 0.05


class MultiDnnNode(LifecycleNode):
    """The node of the package. Transitions (see is_transition) may run in a thread beside that of all other callbacks.

    configure: start the engine; load, cut and warm up the DNNs. activate: subscribe to the cameras and serve.
    deactivate: accept no more frames, finish those in progress. cleanup: end the engine, which frees its memory.
    build: builds the pipeline in the engine process. All other arguments go to rclpy's Node.
    """

    def __init__(self, *, build: Build = build_pipeline, **arguments: Any) -> None:
        Node.__init__(self, "multi_dnn", **arguments)
        # LifecycleNode has no parameter for the group. Reentrant, because get_state must respond during a transition.
        LifecycleNodeMixin.__init__(self, callback_group=ReentrantCallbackGroup())
        self._build = build
        self._host: Host | None = None  # from the start of configuring
        self._progress: str | None = None  # while configuring
        self._served: ServedDnns | None = None  # while configured, as _swaps
        self._swaps: ModelSwaps | None = None
        self._failure = ""  # why the last transition failed
        self._state = "unconfigured"
        self._closing = False
        #: Whether a thread did not end in time.
        self.hangs = False
        self._transition = threading.Lock()  # held during a transition
        self._changes = threading.RLock()  # changed parameters must not meet an ending configuration
        self._board = BoardMonitor(self.get_logger().warning)
        self._node_parameters = NodeParameters(self, self._apply, lambda: self._swaps)
        self._hardware_id = platform.node()
        self._reports = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # On the steady clock, because simulated time may be paused.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        period_s = self._node_parameters.value("diagnostics_period_s")
        self._report_timer = self.create_timer(period_s, self._publish_statuses, clock=steady)
        self._start_timer: Timer | None = None
        if self.autostart:
            self._start_timer = self.create_timer(0.001, self._start, MutuallyExclusiveCallbackGroup(), steady)

    @property
    def autostart(self) -> bool:
        """The value of the parameter `autostart`."""
        return bool(self._node_parameters.value("autostart"))

    def is_transition(self, entity: object) -> bool:
        """Whether the callback of this entity of the node may take long, because it runs transitions."""
        return getattr(entity, "srv_type", None) is ChangeState or (
            isinstance(entity, Timer) and entity is self._start_timer
        )

    def close(self) -> None:
        """Cancel a transition in progress, stop and free everything; for the end of the process."""
        self._closing = True
        self._board.close()
        end = time.monotonic() + STOP_TIMEOUT_S + _END_S
        while not (idle := self._transition.acquire(timeout=_POLL_S)) and time.monotonic() < end:
            if host := self._host:
                host.cancel()
        if not idle:
            self.get_logger().error("the transition in progress does not end; the node ends with exit code 1")
            self.hangs = True
            return
        self._transition.release()
        try:
            self.trigger_shutdown()
        except Exception:  # already shut down
            self._release()

    # -- transitions

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """FAILURE leaves the node unconfigured, with the reason in the log."""
        self._failure, self._state = "", "configuring"
        try:
            with self._in_transition("configure", self._release):
                self._configure()
                self._state = "inactive"
                return super().on_configure(state)
        except Exception:
            return FAILURE
        finally:
            self._progress = None

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        served = self._served
        assert served is not None
        super().on_activate(state)  # before the first result, because inactive publishers drop messages
        try:
            with self._in_transition("activate", self._stop_serving), self._changes:
                served.start()  # a parameter that changes meanwhile takes effect afterwards
        except Exception:
            super().on_deactivate(state)
            return FAILURE
        self._failure, self._state = "", "active"
        self.get_logger().info(f"active: processing images of {', '.join(served.cameras)}")
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        with self._in_transition("deactivate"):
            self._stop_serving()
            self._state = "inactive"
            return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        with self._in_transition("clean up"):
            result = super().on_cleanup(state)
            self._release()
            self._failure = ""
            return result

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        with self._in_transition("shut down"):
            self._release()
            self._failure, self._state = "", "finalized"
            return SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an unexpected error in a transition: free everything, so that the node can be configured again."""
        self._release()
        return SUCCESS

    @contextmanager
    def _in_transition(self, what: str, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock of transitions. An error is logged, which rclpy does not do, and `undo` called."""
        with self._transition:
            try:
                yield
            except Cancelled:
                self.get_logger().info(f"cancelled: {what}")
                undo()
                raise
            except Exception as error:
                # Mistakes in parameters and files are explained by their message, other errors by a traceback.
                expected = getattr(error, "expected", isinstance(error, (ValueError, OSError)))
                text = str(error) if expected or isinstance(error, ConfigureError) else traceback.format_exc()
                lines = text.splitlines() or [type(error).__name__]
                self._failure = f"cannot {what}: {text if expected else lines[-1]}"
                for line in lines:
                    self.get_logger().error(f"cannot {what}: {line}")
                undo()
                raise

    def _start(self) -> None:
        """Configure and activate; called once, by a timer."""
        assert self._start_timer is not None
        self._start_timer.cancel()
        try:
            if not self._closing and self.trigger_configure() is SUCCESS and not self._closing:
                self.trigger_activate()
        except Exception as error:  # another client has requested a transition first
            self.get_logger().warning(f"autostart ends: {error}")

    def _configure(self) -> None:
        config = self._node_parameters.lock("configuring")  # later changes would not be part of this configuration
        self._host = host = Host(self._build)
        if self._closing:
            raise Cancelled
        self._progress = "loading the engine"
        description = host.configure(config, self._report_progress)
        with self._changes:
            self._served = ServedDnns(self, config, host, description)
            self._swaps = ModelSwaps(self, self._served, self._changes, self._node_parameters.restore)
            self._node_parameters.lock("configured")
        self._hardware_id = f"{platform.node()} {description.device_name}"
        self._report_timer.timer_period_ns = round(config.diagnostics_period_s * 1e9)
        memory = ", ".join(f"{name.removesuffix(' (bytes)')} {value >> 20} MiB" for name, value in self._memory())
        self.get_logger().info(
            f"configured: DNNs {', '.join(config.dnns)}; cameras {', '.join(config.cameras)}; "
            f"workers {description.workers} on {description.device}; policy {config.policy}; {memory}"
        )

    def _report_progress(self, text: str) -> None:
        before, self._progress = self._progress, text
        if before != text:
            self.get_logger().info(text)

    def _stop_serving(self) -> None:
        if self._served is not None and (hanging := self._served.stop()):
            self.hangs = True
            self._failure = f"threads did not end within {STOP_TIMEOUT_S:g} s: {', '.join(hanging)}; restart the node"
            self.get_logger().error(self._failure)

    def _release(self) -> None:
        """End the engine, and free everything that configuring created."""
        self._stop_serving()
        with self._changes:
            served, swaps, self._served, self._swaps = self._served, self._swaps, None, None
            self._node_parameters.unlock()
            if swaps is not None:
                swaps.end()
        if self._host is not None:
            self._host.close()
        if swaps is not None:
            swaps.close()
        if served is not None:
            served.close()
        self._host = None
        self._state = "unconfigured"

    # -- parameters

    def _apply(self, name: str, value: Any) -> None:
        """Apply a changed runtime parameter; no effect before configuring, which reads all parameters."""
        _, dnn, field = name.split(".", 2)
        with self._changes:
            if self._served is None or dnn not in self._served.config.dnns:
                return
            self._served.update(dnn, field, value)
        self.get_logger().info(f"{name} is now {value}")

    # -- diagnostics

    def status(self) -> Status:
        """The status `node`: OK while configured; ERROR after a failed transition."""
        served, progress = self._served, self._progress
        values: dict[str, object] = {"state": self._state, **VERSIONS}
        if served is not None:
            values |= served.values()
        values |= dict(self._memory())
        if self._failure:
            return Status("node", ERROR, self._failure, values)
        text = self._state if progress is None else f"configuring: {progress}"
        return Status("node", OK if served is not None else WARN, text, values)

    def _publish_statuses(self) -> None:
        name = self.get_fully_qualified_name().lstrip("/")
        message = DiagnosticArray()
        message.header.stamp = self.get_clock().now().to_msg()
        message.status = [
            DiagnosticStatus(
                name=f"{name}: {status.name}",
                level=status.level,
                message=status.text,
                hardware_id=self._hardware_id,
                values=[KeyValue(key=key, value=str(value)) for key, value in status.values.items()],
            )
            for status in self._statuses()
        ]
        self._reports.publish(message)

    def _statuses(self) -> Iterator[Status]:
        host, served, swaps = self._host, self._served, self._swaps  # a transition may change them
        yield self.status()
        for engine in host.statuses() if host is not None else ():
            yield Status(engine.name, bytes([engine.level]), engine.text, engine.values)
        if swaps is not None:
            yield from swaps.statuses()
        yield from self._board.statuses()
        if served is not None:
            yield from served.statuses()

    def _memory(self) -> Iterator[tuple[str, int]]:
        """Memory by name with the unit, in bytes."""
        yield "resident memory (bytes)", psutil.Process().memory_info().rss
        host = self._host  # a transition may change it
        if host is not None:
            yield from host.memory().items()
