"""The node: parameters and life cycle. What it does while active is in :mod:`multi_dnn_ros.ros.serving_session`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from multi_dnn_ros.ros.board.monitor import BoardMonitor, EnergyPerResult
from multi_dnn_ros.ros.board_status import board_statuses
from multi_dnn_ros.ros.configure_progress import ConfigureProgress
from multi_dnn_ros.ros.diagnostics import DiagnosticsReport
from multi_dnn_ros.ros.enable_services import EnableServices
from multi_dnn_ros.ros.failure_text import failure_text
from multi_dnn_ros.ros.machine import hardware_id, memory_text, resident_memory
from multi_dnn_ros.ros.model_swap import ModelSwaps, SwapHooks
from multi_dnn_ros.ros.node_diagnostics import NodeDiagnostics
from multi_dnn_ros.ros.node_status import NodeView, capacity_statuses, engine_statuses, node_status, status_text
from multi_dnn_ros.ros.parameters import NodeParameters
from multi_dnn_ros.ros.result_publishers import ResultPublishers
from multi_dnn_ros.ros.served import Served
from multi_dnn_ros.ros.service_status import NodeState
from multi_dnn_ros.ros.serving_session import ServingSession
from multi_dnn_ros.ros.tracking import tracking_problems
from multi_dnn_ros.ros.transitions import Transitions
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.capacity import Capacity, CapacityAtRates
from multi_dnn_ros.serving.descriptions import Build, Cancelled, Changes, DnnDescription, EngineDescription
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.settings.dnn_parameters import assign
from multi_dnn_ros.settings.parameter_fields import ParameterError
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.result_kind import RESULT_KINDS

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
#: Default name; a remap changes it.
NODE_NAME = "multi_dnn"
#: Maximum time for a cancelled transition to end by itself; then the host is closed.
_CANCEL_S = 1.0
#: Maximum time for closing the host and the overlay, in addition to stop_timeout_s.
_CLOSE_S = 3.0


class MultiDnnNode(LifecycleNode):
    """The node of the package.

    configure: start the engine; load, cut and warm up the DNNs. activate: subscribe to the cameras and serve.
    deactivate: accept no more frames and finish those in progress. cleanup: end the engine, which frees all memory that
    the DNNs use.

    Transitions that a service call or the parameter `autostart` requests run in a separate thread
    (:mod:`multi_dnn_ros.ros.transitions`), so that the node stays responsive.

    build: builds the pipeline in the engine process (default: :func:`multi_dnn_ros.pipeline.build.build`).
    host: makes the host of the engine. board: starts reading the sensors of the computer. All other arguments go to
    LifecycleNode.
    """

    def __init__(
        self,
        *,
        build: Build = default_build.build,
        host: Callable[[Build], Host] = Host,
        board: Callable[[Callable[[str], None]], BoardMonitor] = BoardMonitor,
        **arguments: Any,
    ) -> None:
        super().__init__(NODE_NAME, **arguments)
        self._hanging: list[ServingSession] = []  # ended sessions with threads that did not end in time
        self._build = build
        self._make_host = host
        self._host: Host | None = None  # from the start of configuring
        self._config: NodeConfig | None = None  # from the start of configuring
        self._served: Served | None = None  # while configured
        self._capacity = CapacityAtRates({})  # while configured
        self._changed: dict[tuple[str, str], Any] = {}  # runtime parameters changed while configuring
        self._outputs: ResultPublishers | None = None
        self._enable_services: EnableServices | None = None  # while configured
        self._session: ServingSession | None = None  # while active
        self._failure = ""
        self._finalized = False
        log = self.get_logger()
        self._progress = ConfigureProgress(log.info)
        self._board = board(log.warning)
        self._energy = EnergyPerResult()
        hooks = SwapHooks(
            lambda: self._served,
            self._taken_over,
            keep=lambda: self._node_parameters.keep_swapped(),
            restore=lambda: self._node_parameters.restore_swapped(),
        )
        self._swaps = ModelSwaps(self, hooks)
        self._node_parameters = NodeParameters(self, self._apply, self._swaps)
        self._diagnostics = NodeDiagnostics(self, self._node_parameters, self._statuses)
        self._transitions = Transitions(self, self._cancel, lambda: self._served is not None)
        self._start_timer = None
        if self.autostart:
            # On the steady clock, because simulated time may be paused.
            clock = Clock(clock_type=ClockType.STEADY_TIME)
            self._start_timer = self.create_timer(0.001, self._start, clock=clock)

    def published(self) -> dict[tuple[str, str], int]:
        """Number of results published since activation, by (DNN, camera); empty while inactive."""
        return self._session.published() if self._session is not None else {}

    @property
    def autostart(self) -> bool:
        """The value of the parameter `autostart`."""
        return bool(self._node_parameters.value("autostart"))

    def service_state(self) -> NodeState:
        """The state of the node for the service manager that started it."""
        host, view = self._host, self._view({})
        age_s = host.supervision_age_s() if host is not None else 0.0
        return NodeState(view.state, status_text(view), view.ended, age_s)

    @property
    def pending_responses(self) -> int:
        """Number of requests of the service `change_state` without a response yet."""
        return self._transitions.pending_responses

    @property
    def hung(self) -> list[str]:
        """Names of threads that did not end in time and still run."""
        self._hanging = [session for session in self._hanging if session.running_threads()]
        threads = [name for session in self._hanging for name in session.running_threads()]
        return [*threads, "transition"] if self._transitions.hangs else threads

    def close(self) -> None:
        """Stop and free everything, in any state; for the end of the process."""
        self._board.close()
        if not self._transitions.end(_CANCEL_S) and not self._end_slow_transition():
            self._transitions.abandon()
            self.get_logger().error(
                "the transition in progress does not end; the node shuts down regardless, with exit code 1"
            )
            self._release()
            return
        try:
            self.trigger_shutdown()
        except Exception:  # already shut down
            self._release()

    def destroy_node(self) -> None:
        """Also destroy the state machine of the life cycle, which rclpy leaves to the garbage collector.

        It keeps the node in the middleware: others would see the node, and its endpoints, until its lease has expired.
        """
        super().destroy_node()
        self._state_machine.destroy_when_not_in_use()  # not public

    def _end_slow_transition(self) -> bool:
        """End a transition that did not end when cancelled: close the host if configuring, otherwise wait longer."""
        if self._state() == "configuring" and self._host is not None:
            self._host.close()
            return self._transitions.end(_CANCEL_S / 2)
        return self._transitions.end(self._node_parameters.value("stop_timeout_s") + _CLOSE_S)

    # -- transitions

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """FAILURE leaves the node unconfigured, with the reason in the log; parameters can then be corrected."""
        in_executor = self._transitions.in_executor
        try:
            host, config = in_executor(self._begin_configuring)
            self._progress.start("loading the engine")
            description = host.configure(config, self._progress.report)
            in_executor(self._end_configuring, config, description)
        except Exception as error:
            self._log_failure("configure", error)
            self._release()
            return FAILURE
        finally:
            self._progress.end()
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transitions.in_executor(self._activate, state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._stop_serving()
        return self._transitions.in_executor(super().on_deactivate, state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        result = super().on_cleanup(state)
        self._release()
        self._failure = ""
        return result

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._release()
        self._failure = ""
        self._finalized = True
        return SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an unexpected error in a transition: free everything, so that the node can be configured again."""
        self._release()
        return SUCCESS

    def _start(self) -> None:
        """Configure and activate; called once, by a timer."""
        if self._start_timer is not None:
            self._start_timer.cancel()
            self.destroy_timer(self._start_timer)
            self._start_timer = None
        if self._host is None:
            self._transitions.begin(self.trigger_configure, self.trigger_activate)

    def _cancel(self) -> None:
        if self._host is not None:
            self._host.cancel()

    def _begin_configuring(self) -> tuple[Host, NodeConfig]:
        self._failure = ""
        self._changed = {}
        self._progress.start("reading the parameters")
        self._host = self._make_host(self._build)
        config = self._node_parameters.parse()
        self._node_parameters.lock(True)  # later changes would not be part of this configuration
        self._config = config  # runtime parameters change it from now on
        return self._host, config

    def _end_configuring(self, config: NodeConfig, description: EngineDescription) -> None:
        assert self._host is not None
        dnns = description.dnns
        RESULT_KINDS.usable()
        results = {
            name: {output: (RESULT_KINDS.get(it.result_kind), it.labels) for output, it in dnn.results.items()}
            for name, dnn in dnns.items()
        }
        problems = tracking_problems(
            config, {name: [kind for kind, _ in found.values()] for name, found in results.items()}
        )
        if problems:
            raise ParameterError(problems)
        self._outputs = ResultPublishers(
            self,
            cameras_by_dnn={name: dnn.cameras for name, dnn in dnns.items()},
            results=results,
        )
        self._enable_services = EnableServices(self, dnns)
        self._diagnostics.configured(hardware_id(description.device_name))
        self._served = Served(config, description, self._host, self._outputs)
        for (dnn, field), value in self._changed.items():
            self._host.update(dnn, field, value)
        self._served.set_tracking_thresholds()
        self._capacity = CapacityAtRates(description.fits)
        self._log_capacity(self._capacity.current)
        self.get_logger().info(
            f"configured: DNNs {', '.join(config.dnns)}; cameras {', '.join(config.cameras)}; "
            f"workers {description.workers} on {description.device}; policy {config.policy}; "
            f"{memory_text(self._memory())}"
        )

    def _activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        served = self._served
        assert served is not None
        super().on_activate(state)  # before the first result, because inactive publishers drop messages
        try:
            self._session = ServingSession(
                self,
                served.config,
                served.host,
                served.description,
                served.outputs,
                served.new_tracks(),
            )
            self._diagnostics.activated()
            served.publish_labels()
        except Exception as error:
            self._log_failure("activate", error)
            self._stop_serving()
            super().on_deactivate(state)
            return FAILURE
        self._failure = ""
        cameras = dict.fromkeys(camera for dnn in served.description.dnns.values() for camera in dnn.cameras)
        self.get_logger().info(f"active: processing images of {', '.join(cameras)}")
        return SUCCESS

    def _stop_serving(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        assert self._config is not None
        self._transitions.in_executor(session.unsubscribe)
        hung = session.stop(self._config.stop_timeout_s)
        if hung:
            self._hanging.append(session)
            self.get_logger().error(
                f"threads did not end within {self._config.stop_timeout_s} s (parameter stop_timeout_s): "
                f"{', '.join(hung)}; if /diagnostics still lists them, restart the node"
            )

    def _release(self) -> None:
        """End the engine, free everything that configuring created, and log the memory before and after."""
        self._stop_serving()
        host, served, before = self._host, self._served, memory_text(self._memory())
        if host is not None:
            host.close()
        self._transitions.in_executor(self._clear_configuration)
        if served is not None:
            (after,) = resident_memory().values()
            self.get_logger().info(f"freed the DNNs; {before}; afterwards: node {after / 2**20:,.0f} MiB")

    def _clear_configuration(self) -> None:
        if self._outputs is not None:
            self._outputs.close()
        if self._enable_services is not None:
            self._enable_services.close()
        self._enable_services = None
        self._host = self._outputs = self._config = self._served = None
        self._swaps.end()
        self._node_parameters.lock(False)

    def _log_failure(self, what: str, error: Exception) -> None:
        if isinstance(error, Cancelled):
            self.get_logger().info(f"cancelled: {what}")
            return
        self._failure, lines = failure_text(what, error)
        for line in lines:
            self.get_logger().error(line)

    # -- parameters

    def _apply(self, name: str, value: Any) -> None:
        """Apply a changed runtime parameter; no effect before configuring, which reads all parameters."""
        _, dnn, field = name.split(".", 2)
        if self._config is None or dnn not in self._config.dnns:
            return
        served = self._served
        if served is None:
            assign(self._config.dnns[dnn], field, value)
            self._changed[dnn, field] = value
            self.get_logger().info(f"{name} is now {value}")
            return
        before = served.rates()
        served.update(dnn, field, value, self._session)
        self.get_logger().info(f"{name} is now {value}")
        if (after := served.rates()) != before:
            self._log_capacity(self._capacity.change_rates(before, after))

    def _taken_over(self, changes: Changes, dnns: Mapping[str, DnnDescription]) -> None:
        """A swap has replaced the settings of DNNs."""
        assert self._served is not None
        self._capacity = CapacityAtRates({})  # measured with the previous settings
        self._served.adopt(changes, dnns, self._session)

    # -- diagnostics

    def _statuses(self, report: DiagnosticsReport) -> Iterator[DiagnosticStatus]:
        host, served, session = self._host, self._served, self._session  # a transition may change them
        yield node_status(report, self._view(self._memory()))
        yield from capacity_statuses(report, self._capacity.current if served is not None else None)
        yield from engine_statuses(report, host.statuses() if host is not None else ())
        yield from self._swaps.statuses(report)
        reading = self._board.latest()
        energy_j = self._energy.update(reading.total_w, sum(self.published().values()))
        yield from board_statuses(report, reading, energy_j)
        if session is not None:
            yield from session.statuses(report)

    def _log_capacity(self, capacity: Capacity | None) -> None:
        if capacity is None:
            return
        text = "; ".join((f"capacity: {capacity.text}", *capacity.advice))
        if capacity.fits:  # two calls, because rclpy allows only one level per calling line
            self.get_logger().info(text)
        else:
            self.get_logger().warning(text)

    def _state(self) -> str:
        if self._session is not None:
            return "active"
        if self._served is not None:
            return "inactive"
        if self._progress.current is not None:
            return "configuring"
        return "finalized" if self._finalized else "unconfigured"

    def _view(self, memory: Mapping[str, int]) -> NodeView:
        served, session = self._served, self._session  # a transition may change them
        return NodeView(
            state=self._state(),
            progress=self._progress.current if served is None else None,
            config=self._config,
            description=served.description if served is not None else None,
            failure=self._failure,
            hung=self.hung,
            ended=session.failed_threads() if session is not None else (),
            memory=memory,
        )

    def _memory(self) -> dict[str, int]:
        return {**resident_memory(), **(self._host.memory() if self._host is not None else {})}
