"""The node: parameters and life cycle. What it does while active is in :mod:`multi_dnn_ros.ros.serving`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psutil
import torch
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from multi_dnn_ros.memory import give_back_memory, settle_memory
from multi_dnn_ros.ros.diagnostics import ERROR, OK, WARN, DiagnosticsReport
from multi_dnn_ros.ros.machine import hardware_id, versions
from multi_dnn_ros.ros.middleware import Middleware, found
from multi_dnn_ros.ros.outputs import ResultPublishers
from multi_dnn_ros.ros.parameters import NodeParameters
from multi_dnn_ros.ros.receive_check import ReceiveCheck
from multi_dnn_ros.ros.serving import LogThrottle, Serving
from multi_dnn_ros.schema import NodeConfig
from multi_dnn_ros.serving.capacity import capacity, capacity_values
from multi_dnn_ros.serving.warm_up import warm_up

if TYPE_CHECKING:
    from multi_dnn_ros.profiling.fit import Verdict

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
#: Unless it is remapped.
NODE_NAME = "multi_dnn"
#: Runtime parameters that the decoder of a DNN reads for each frame.
_DECODER = ("score_threshold", "iou_threshold", "max_detections")


def _build(config: NodeConfig, progress: Callable[[str], None]) -> Any:
    # Imported when configuring: it takes seconds, in which the node is on the graph already and can be asked and told.
    from multi_dnn_ros.pipeline import build

    return build(config, progress)


def _check(config: NodeConfig) -> Sequence[str]:
    from multi_dnn_ros.settings_check import check_settings

    return check_settings(config).problems


class MultiDnnNode(LifecycleNode):
    """configure: load, cut and warm up the DNNs. activate: start the engine and subscribe. deactivate: take no more
    frames, finish those under way. cleanup: free the DNNs' memory.

    With the parameter `autostart` it configures and activates by itself once an executor spins it.
    build: makes the pipeline (see :func:`multi_dnn_ros.pipeline.build`). check: what else is wrong with a configuration
    of which some values are wrong (see :func:`multi_dnn_ros.settings_check.check_settings`); `build` checks by itself.
    middleware: what ROS 2 runs on, and with whose settings. Further arguments are LifecycleNode's.
    """

    def __init__(
        self,
        *,
        build: Callable[[NodeConfig, Callable[[str], None]], Any] = _build,
        check: Callable[[NodeConfig], Sequence[str]] = _check,
        middleware: Middleware | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(NODE_NAME, **arguments)
        self._hanging: list[Serving] = []  # those with threads that did not end when they were told to
        self.configuring = False
        self._build = build
        self._check = check
        self._config: NodeConfig | None = None
        self._pipeline: Any = None
        self._outputs: ResultPublishers | None = None
        self._serving: Serving | None = None
        self._failure = ""
        self._finalized = False
        self._capacity: Verdict | None = None
        self._throttle = LogThrottle()
        log = self.get_logger()
        self._receive_check = ReceiveCheck(middleware or found(), log.warning, log.info)
        self._node_parameters = NodeParameters(self, self._apply)
        self._report = self._new_report("")
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # Steady: diagnostics go out also while simulated time stands still.
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._diagnostics_timer = self._new_diagnostics_timer()
        self._start_timer = None
        if self._node_parameters.value("autostart"):
            self._start_timer = self.create_timer(0.001, self._start, clock=self._steady)

    @property
    def device(self) -> torch.device:
        """Where the DNNs run; the CPU while there are none."""
        return self._pipeline.device if self._pipeline is not None else torch.device("cpu")

    def published(self) -> dict[tuple[str, str], int]:
        """Results published since activating, by DNN and camera; empty while inactive."""
        return self._serving.published() if self._serving is not None else {}

    @property
    def hung(self) -> list[str]:
        """Threads that did not end when they were told to, and still have not."""
        self._hanging = [serving for serving in self._hanging if serving.alive()]
        return [name for serving in self._hanging for name in serving.alive()]

    def close(self) -> None:
        """Stop and free everything, in whatever state the node is; for the end of the process."""
        try:
            self.trigger_shutdown()
        except Exception:  # in the middle of a transition, or shut down already
            self._release()

    # -- transitions

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """FAILURE, with the reason in the log, leaves the node unconfigured; parameters may then be set right."""
        self.configuring = True
        try:
            self._failure = ""
            self._config = config = self._node_parameters.config(self._check)
            self._pipeline = pipeline = self._build(config, self.get_logger().info)
            warm_up(pipeline.tasks, pipeline.device, self.get_logger().info)
            self._capacity = self._judge(config, pipeline)
            self._outputs = ResultPublishers(
                self,
                streams={task.name: task.cameras for task in pipeline.tasks},
                lanes=frozenset(name for name, settings in config.dnns.items() if settings.role == "lane"),
                labels={name: dnn.labels for name, dnn in pipeline.dnns.items() if config.dnns[name].role != "lane"},
            )
            self._report = self._new_report(hardware_id(pipeline.device))
            self.destroy_timer(self._diagnostics_timer)
            self._diagnostics_timer = self._new_diagnostics_timer()
            self._receive_check.configured([name for name, it in config.cameras.items() if it.transport == "raw"])
            settle_memory()
        except Exception as error:
            self._fail("configure", error)
            self._release()
            return FAILURE
        finally:
            self.configuring = False
        self._node_parameters.lock(True)
        self.get_logger().info(
            f"configured: DNNs {', '.join(config.dnns)}; cameras {', '.join(config.cameras)}; "
            f"workers {pipeline.workers} on {pipeline.device}; policy {config.policy}; {_memory(pipeline.device)}"
        )
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self._config is not None
        assert self._outputs is not None
        super().on_activate(state)  # before the first result: inactive publishers drop what they are given
        try:
            self._serving = Serving(self, self._config, self._pipeline, self._outputs, self._receive_check)
            self._report.restart()
            for name, dnn in self._pipeline.dnns.items():
                self._outputs.publish_labels(name, dnn.decoder.score_threshold)
        except Exception as error:
            self._fail("activate", error)
            self._stop()
            super().on_deactivate(state)
            return FAILURE
        self._failure = ""
        self.get_logger().info("active")
        return SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop()
        return super().on_deactivate(state)

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
        if self._pipeline is None and self.trigger_configure() == SUCCESS:
            self.trigger_activate()

    def _stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is None:
            return
        assert self._config is not None
        hung = serving.stop(self._config.stop_timeout_s)
        if hung:
            self._hanging.append(serving)
            self.get_logger().error(
                f"threads did not end within {self._config.stop_timeout_s} s (parameter stop_timeout_s): "
                f"{', '.join(hung)}"
            )

    def _release(self) -> None:
        """Free what configuring made, if anything, and say how much that was."""
        self._stop()
        if self._outputs is not None:
            self._outputs.close()
            self._outputs = None
        pipeline, self._pipeline, self._config = self._pipeline, None, None
        self._node_parameters.lock(False)
        if pipeline is None:
            return
        device = pipeline.device
        before = _memory(device)
        del pipeline
        give_back_memory(device)
        self.get_logger().info(f"freed: {before} before, {_memory(device)} after")

    def _fail(self, what: str, error: Exception) -> None:
        """Mistakes in parameters and files are told in words; anything else with where it happened."""
        self._failure = f"cannot {what}: {error}"
        expected = isinstance(error, (ValueError, OSError))
        for line in str(error).splitlines() if expected else traceback.format_exc().splitlines():
            self.get_logger().error(f"cannot {what}: {line}")

    # -- parameters

    def _apply(self, name: str, value: Any) -> None:
        """A runtime parameter has changed; before configuring there is nothing to change."""
        _, dnn, field = name.split(".")
        if self._config is None or dnn not in self._config.dnns:
            return
        setattr(self._config.dnns[dnn], field, value)
        if field in _DECODER:
            decoder = self._pipeline.dnns[dnn].decoder
            setattr(decoder, field, value)
            if field == "score_threshold" and self._serving is not None and self._outputs is not None:
                self._outputs.publish_labels(dnn, decoder.score_threshold)  # never 0, which stands for the model's own
        elif self._serving is not None:
            self._serving.update(dnn, field, value)
        self.get_logger().info(f"{name} is now {value}")

    # -- diagnostics

    def _new_report(self, hardware: str) -> DiagnosticsReport:
        name = self.get_fully_qualified_name().lstrip("/")
        return DiagnosticsReport(name, hardware, self._node_parameters.value("stale_after_s"))

    def _new_diagnostics_timer(self) -> Any:
        period_s = self._node_parameters.value("diagnostics_period_s")
        return self.create_timer(period_s, self._publish_diagnostics, clock=self._steady)

    def _publish_diagnostics(self) -> None:
        try:
            statuses = [
                self._status(),
                *self._capacity_status(),
                *(self._serving.statuses(self._report) if self._serving is not None else ()),
            ]
            self._diagnostics.publish(self._report.message(self.get_clock().now().to_msg(), statuses))
        except Exception:  # diagnostics must never be what ends the node
            more = self._throttle.passes("diagnostics")
            if more is not None:
                self.get_logger().error(f"diagnostics: {traceback.format_exc()}{more}")

    def _judge(self, config: NodeConfig, pipeline: Any) -> Verdict | None:
        """Whether the device can do what is asked of it; a node that it is too much for serves what it can."""
        try:
            found = capacity(config, pipeline)
        except ValueError as error:
            self.get_logger().warning(f"capacity is not known: {error}")
            return None
        if found is not None:
            text = "; ".join((f"capacity: {found.text}", *found.advice))
            if found.fits:  # a call for each severity: rclpy raises when one place logs with two
                self.get_logger().info(text)
            else:
                self.get_logger().warning(text)
        return found

    def _capacity_status(self) -> list[DiagnosticStatus]:
        """Of what was found when configuring; nothing without rates."""
        found = self._capacity
        if found is None or self._pipeline is None:
            return []
        return [self._report.status("capacity", OK if found.fits else WARN, found.text, capacity_values(found))]

    def _status(self) -> DiagnosticStatus:
        without = "finalized" if self._finalized else "unconfigured"
        state = "active" if self._serving else without if self._pipeline is None else "inactive"
        level, text = OK, state
        hung = self.hung
        ended = self._serving.ended() if self._serving is not None else []
        if self._failure or hung or ended:
            level = ERROR
            text = self._failure or (
                f"threads hang: {', '.join(hung)}" if hung else f"threads ended by an error: {', '.join(ended)}"
            )
        elif self._pipeline is None:
            level = WARN
        values: dict[str, object] = {"state": state, **versions()}
        if self._config is not None and self._pipeline is not None:
            values.update(
                {
                    "device": self._pipeline.device,
                    "workers": self._pipeline.workers,
                    "policy": self._config.policy,
                    "DNNs": ", ".join(self._config.dnns),
                    "cameras": ", ".join(self._config.cameras),
                    **_memory_values(self._pipeline.device),
                }
            )
        return self._report.status("node", level, text, values)


def _memory_values(device: torch.device) -> dict[str, int]:
    values = {"resident memory (bytes)": psutil.Process().memory_info().rss}
    if device.type == "cuda":
        values["GPU allocated (bytes)"] = torch.cuda.memory_allocated(device)
        values["GPU reserved (bytes)"] = torch.cuda.memory_reserved(device)
    return values


def _memory(device: torch.device) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in _memory_values(device).items())
