"""The node: parameters and life cycle. What it does while active is in :mod:`multi_dnn_ros.ros.serving`."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import psutil
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from multi_dnn_ros.common.thread_names import name_threads
from multi_dnn_ros.ros.diagnostics import DiagnosticsReport
from multi_dnn_ros.ros.machine import hardware_id
from multi_dnn_ros.ros.middleware import Middleware, found
from multi_dnn_ros.ros.node_status import NodeView, capacity_statuses, host_statuses, node_status
from multi_dnn_ros.ros.outputs import ResultPublishers
from multi_dnn_ros.ros.parameters import NodeParameters
from multi_dnn_ros.ros.receive_check import ReceiveCheck
from multi_dnn_ros.ros.serving import LogThrottle, Serving
from multi_dnn_ros.ros.transitions import Transitions
from multi_dnn_ros.serving.capacity import Capacity, CapacityForImages
from multi_dnn_ros.serving.host import Build, Cancelled, ConfigureError, Description, Host, Progress
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.result_kind import RESULT_KINDS

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
#: Unless it is remapped.
NODE_NAME = "multi_dnn"
#: How long a transition that was cancelled may take to end; then the host is closed under it.
_CANCEL_S = 1.0
#: How long closing the host, and what is drawn, may take beyond the time to stop.
_CLOSE_S = 3.0

#: Makes the host for a value of the parameter `isolation`. build: see MultiDnnNode.
MakeHost = Callable[[str, "Build | None"], Host]


def make_host(isolation: str, build: Build | None) -> Host:
    """The engine in processes of its own (`process`), or in this one (`none`), which imports PyTorch here."""
    from multi_dnn_ros.serving import default_build

    if isolation == "none":
        from multi_dnn_ros.serving.local_host import LocalHost

        return LocalHost(build or default_build.build)
    from multi_dnn_ros.serving.process_host import ProcessHost

    return ProcessHost(build or default_build.build)


class MultiDnnNode(LifecycleNode):
    """configure: load, cut and warm up the DNNs. activate: serve, and subscribe. deactivate: take no more frames,
    finish those under way. cleanup: end the engine, which frees all memory of the DNNs.

    Transitions that are asked for by service, and those of the parameter `autostart`, run in a thread of their own
    (:mod:`multi_dnn_ros.ros.transitions`), so that the node answers meanwhile.

    build: makes the pipeline where the engine is (default: :func:`multi_dnn_ros.pipeline.build.build`). host: makes the
    host of the engine. middleware: what ROS 2 runs on, and with whose settings. Further arguments are
    LifecycleNode's.
    """

    def __init__(
        self,
        *,
        build: Build | None = None,
        host: MakeHost = make_host,
        middleware: Middleware | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(NODE_NAME, **arguments)
        self._hanging: list[Serving] = []  # those with threads that did not end when they were told to
        self._build = build
        self._make_host = host
        self._host: Host | None = None  # from the begin of configuring
        self._progress: Progress | None = None  # while configuring
        self._progressing = threading.Lock()  # held to change it
        self._config: NodeConfig | None = None
        self._description: Description | None = None
        self._capacity = CapacityForImages(None)  # while configured
        self._changed: dict[tuple[str, str], Any] = {}  # runtime parameters that changed while configuring
        self._outputs: ResultPublishers | None = None
        self._serving: Serving | None = None
        self._failure = ""
        self._finalized = False
        self._throttle = LogThrottle()
        log = self.get_logger()
        self._receive_check = ReceiveCheck(middleware or found(), log.warning, log.info)
        self._node_parameters = NodeParameters(self, self._apply)
        self._report = self._new_report("")
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # Steady: diagnostics go out also while simulated time stands still.
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._diagnostics_timer = self._new_diagnostics_timer()
        self._transitions = Transitions(self, self._cancel, lambda: self._description is not None)
        self._start_timer = None
        if self._node_parameters.value("autostart"):
            self._start_timer = self.create_timer(0.001, self._start, clock=self._steady)

    def published(self) -> dict[tuple[str, str], int]:
        """Results published since activating, by DNN and camera; empty while inactive."""
        return self._serving.published() if self._serving is not None else {}

    @property
    def unanswered(self) -> int:
        """Clients of the service `change_state` that wait for an answer."""
        return self._transitions.unanswered

    @property
    def hung(self) -> list[str]:
        """What did not end when it was told to, and still has not."""
        self._hanging = [serving for serving in self._hanging if serving.alive()]
        threads = [name for serving in self._hanging for name in serving.alive()]
        return [*threads, "transition"] if self._transitions.hangs else threads

    def close(self) -> None:
        """Stop and free everything, in whatever state the node is; for the end of the process."""
        if not self._transitions.end(_CANCEL_S) and not self._end_slow_transition():
            self._transitions.abandon()
            self.get_logger().error("the transition that is under way does not end")
            self._release()
            return
        try:
            self.trigger_shutdown()
        except Exception:  # shut down already
            self._release()

    def _end_slow_transition(self) -> bool:
        """What did not end at once when it was cancelled: configuring is given up, and stopping may take its time."""
        if self._state() == "configuring" and self._host is not None:
            self._host.close()
            return self._transitions.end(_CANCEL_S / 2)
        return self._transitions.end(self._node_parameters.value("stop_timeout_s") + _CLOSE_S)

    # -- transitions

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """FAILURE, with the reason in the log, leaves the node unconfigured; parameters may then be set right."""
        in_executor = self._transitions.in_executor
        try:
            host, reading = in_executor(self._begin_configuring)
            config = self._node_parameters.checked(reading, host.check)
            self._config = config
            self._progress = Progress("loading the engine")
            description = host.configure(config, self._progressed)
            in_executor(self._configured, config, description)
        except Exception as error:
            # Here, where the traceback is; in the executor's thread only what concerns ROS.
            self._fail("configure", error)
            self._release()
            return FAILURE
        finally:
            with self._progressing:
                self._progress = None
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transitions.in_executor(self._activate, state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop()
        return self._transitions.in_executor(super().on_deactivate, state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        result = super().on_cleanup(state)
        self._release()
        return result

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._release()
        self._finalized = True
        return SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """An unexpected error in a transition: everything is freed, and the node may be configured again."""
        self._release()
        return SUCCESS

    def _start(self) -> None:
        """Once, by timer: configure and activate."""
        if self._start_timer is not None:
            self._start_timer.cancel()
            self.destroy_timer(self._start_timer)
            self._start_timer = None
        if self._host is None:
            self._transitions.begin(self.trigger_configure, self.trigger_activate)

    def _cancel(self) -> None:
        if self._host is not None:
            self._host.cancel()

    def _begin_configuring(self) -> tuple[Host, Any]:
        self._failure = ""
        self._changed = {}
        self._progress = Progress("reading the parameters")
        self._host = self._make_host(self._node_parameters.value("isolation"), self._build)
        reading = self._node_parameters.reading()
        self._node_parameters.lock(True)  # what is set from now on would not be in what is being configured
        return self._host, reading

    def _progressed(self, progress: Progress) -> None:
        """Called in any thread."""
        with self._progressing:
            former = self._progress
            if former is None:  # told late: configuring has ended
                return
            self._progress = progress
        if progress.text != former.text:
            self.get_logger().info(progress.text)

    def _configured(self, config: NodeConfig, description: Description) -> None:
        assert self._host is not None
        dnns = description.dnns
        RESULT_KINDS.report_broken(self.get_logger().warning)
        self._outputs = ResultPublishers(
            self,
            streams={name: dnn.cameras for name, dnn in dnns.items()},
            kinds={name: RESULT_KINDS.get(dnn.result_kind) for name, dnn in dnns.items()},
            labels={name: dnn.labels for name, dnn in dnns.items()},
        )
        self._report = self._new_report(hardware_id(description.device_name))
        self.destroy_timer(self._diagnostics_timer)
        self._diagnostics_timer = self._new_diagnostics_timer()
        self._receive_check.configured([name for name, it in config.cameras.items() if it.transport == "raw"])
        self._description = description
        for (dnn, field), value in self._changed.items():
            self._host.update(dnn, field, value)
        self._capacity = CapacityForImages(description.fit)
        self._tell_capacity(self._capacity.current)
        self.get_logger().info(
            f"configured: DNNs {', '.join(config.dnns)}; cameras {', '.join(config.cameras)}; "
            f"workers {description.workers} on {description.device}; policy {config.policy}; {self._memory()}"
        )

    def _activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._config is not None
        assert self._description is not None
        assert self._host is not None
        assert self._outputs is not None
        super().on_activate(state)  # before the first result: inactive publishers drop what they are given
        try:
            self._serving = Serving(
                self, self._config, self._host, self._description, self._outputs, self._receive_check, self._on_size
            )
            self._report.restart()
            for name in self._description.dnns:
                self._outputs.publish_labels(name, self._threshold(name))
        except Exception as error:
            self._fail("activate", error)
            self._stop()
            super().on_deactivate(state)
            return FAILURE
        self._failure = ""
        self.get_logger().info("active")
        return SUCCESS

    def _stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is None:
            return
        assert self._config is not None
        self._transitions.in_executor(serving.unsubscribe)
        hung = serving.stop(self._config.stop_timeout_s)
        if hung:
            self._hanging.append(serving)
            self.get_logger().error(
                f"threads did not end within {self._config.stop_timeout_s} s (parameter stop_timeout_s): "
                f"{', '.join(hung)}"
            )

    def _release(self) -> None:
        """End the engine and free what configuring made, if anything, and say how much that was."""
        self._stop()
        host, description, before = self._host, self._description, self._memory()
        if host is not None:
            host.close()
        self._transitions.in_executor(self._forget)
        if description is not None:
            self.get_logger().info(f"freed: {before} before, {self._memory()} after")

    def _forget(self) -> None:
        if self._outputs is not None:
            self._outputs.close()
        self._host = self._outputs = self._config = self._description = None
        self._node_parameters.lock(False)

    def _fail(self, what: str, error: Exception) -> None:
        """Mistakes in parameters and files are told in words; anything else with where it happened."""
        if isinstance(error, Cancelled):
            self.get_logger().info(f"cancelled: {what}")
            return
        if isinstance(error, ConfigureError):
            expected, text = error.expected, error.text
        else:
            expected = isinstance(error, (ValueError, OSError))
            text = str(error) if expected else traceback.format_exc()
        lines = text.splitlines() or [type(error).__name__]
        self._failure = f"cannot {what}: {text if expected else lines[-1]}"
        for line in lines:
            self.get_logger().error(f"cannot {what}: {line}")

    # -- parameters

    def _threshold(self, dnn: str) -> float:
        """The score threshold in force; 0 stands for the model's own."""
        assert self._config is not None
        assert self._description is not None
        return self._config.dnns[dnn].score_threshold or self._description.dnns[dnn].own_threshold

    def _apply(self, name: str, value: Any) -> None:
        """A runtime parameter has changed; before configuring there is nothing to change."""
        _, dnn, field = name.split(".")
        if self._config is None or dnn not in self._config.dnns:
            return
        setattr(self._config.dnns[dnn], field, value)
        if self._description is None or self._host is None:
            self._changed[dnn, field] = value
        else:
            self._host.update(dnn, field, value)
            if self._serving is not None:
                self._serving.update(dnn, field, value)
            if field == "score_threshold" and self._serving is not None and self._outputs is not None:
                self._outputs.publish_labels(dnn, self._threshold(dnn))
        self.get_logger().info(f"{name} is now {value}")

    # -- diagnostics

    def _new_report(self, hardware: str) -> DiagnosticsReport:
        name = self.get_fully_qualified_name().lstrip("/")
        return DiagnosticsReport(name, hardware, self._node_parameters.value("stale_after_s"))

    def _new_diagnostics_timer(self) -> Any:
        period_s = self._node_parameters.value("diagnostics_period_s")
        return self.create_timer(period_s, self._publish_diagnostics, clock=self._steady)

    def _publish_diagnostics(self) -> None:
        name_threads()
        try:
            host, description, serving = self._host, self._description, self._serving
            statuses = [
                node_status(self._report, self._view()),
                *capacity_statuses(self._report, self._capacity.current if description is not None else None),
                *host_statuses(self._report, host.statuses() if host is not None else ()),
                *(serving.statuses(self._report) if serving is not None else ()),
            ]
            self._diagnostics.publish(self._report.message(self.get_clock().now().to_msg(), statuses))
        except Exception:  # diagnostics must never be what ends the node
            more = self._throttle.passes("diagnostics")
            if more is not None:
                self.get_logger().error(f"diagnostics: {traceback.format_exc()}{more}")

    def _on_size(self, camera: str, size: tuple[int, int]) -> None:
        """An image of this (width, height) was served."""
        self._tell_capacity(self._capacity.observe(camera, size))

    def _tell_capacity(self, found: Capacity | None) -> None:
        if found is None:
            return
        text = "; ".join((f"capacity: {found.text}", *found.advice))
        if found.fits:  # a call for each severity: rclpy raises when one place logs with two
            self.get_logger().info(text)
        else:
            self.get_logger().warning(text)

    def _state(self) -> str:
        if self._serving is not None:
            return "active"
        if self._description is not None:
            return "inactive"
        if self._progress is not None:
            return "configuring"
        return "finalized" if self._finalized else "unconfigured"

    def _view(self) -> NodeView:
        serving = self._serving  # which a transition may end meanwhile
        return NodeView(
            state=self._state(),
            progress=self._progress if self._description is None else None,
            config=self._config,
            description=self._description,
            failure=self._failure,
            hung=self.hung,
            ended=serving.ended() if serving is not None else (),
            memory=self._memory_values(),
        )

    def _memory_values(self) -> dict[str, int]:
        own = {"resident memory (bytes)": psutil.Process().memory_info().rss}
        return own if self._host is None else {**own, **self._host.memory()}

    def _memory(self) -> str:
        return ", ".join(f"{name} {value:,}" for name, value in self._memory_values().items())
