"""Carries out the events of a soak: parameters and services of the node, cameras, the overlay's subscriber, kills."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_srvs.srv import SetBool

from multi_dnn_ros.benchmark.rig import NODE, Rig
from multi_dnn_ros.benchmark.soak import plan
from multi_dnn_ros.benchmark.soak.plan import Event
from multi_dnn_ros.settings.parameter_fields import shown

DONE, SKIPPED, REFUSED, FAILED, UNANSWERED, UNDER_WAY = (
    "done", "skipped", "refused", "failed", "not answered", "under way"
)  # fmt: skip
#: Time limit for the last answers and the end of the last swap. Swapping a model takes as long as configuring it.
_ANSWER_LIMIT_S = 120.0
_SWAP_STATUS = "model swap"


@dataclass(frozen=True)
class Outcome:
    """What became of an event. begun_s, answered_s: on the rig's clock. reason: why the event was not carried out; for
    a model swap, what the diagnostics say.
    """

    event: Event
    begun_s: float
    result: str = UNANSWERED
    reason: str = ""
    answered_s: float | None = None

    def described(self, begin_s: float) -> dict[str, Any]:
        """For JSON, with times since the beginning."""
        answered = None if self.answered_s is None else self.answered_s - begin_s
        return {
            **asdict(self.event),
            "begun_s": self.begun_s - begin_s,
            "result": self.result,
            "reason": self.reason,
            "answered_s": answered,
        }


class Actions:
    """Carries out events in a rig; requests are answered while the rig spins. seed: for choosing engine processes."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.outcomes: list[Outcome] = []
        self.overlays: dict[str, int] = {}  # images by topic that was watched
        self._rig = rig
        self._random = random.Random(seed)
        self._set = rig.observer.create_client(SetParameters, f"{NODE}/set_parameters")
        self._enable = {dnn: rig.observer.create_client(SetBool, f"{NODE}/{dnn}/enable") for dnn in rig.config.dnns}
        self._former_swap: tuple[str | None, str | None] = (None, None)  # status when the latest swap was accepted
        self._watched: dict[str, Any] = {}  # subscription by topic
        self._handlers: dict[str, Callable[[Event], None]] = {
            plan.SET: lambda event: self._set_parameter(event, event.target, event.value),
            plan.SWAP: self._swap_model,
            plan.ENABLE: self._switch,
            plan.WATCH: self._watch,
            plan.KILL_CAMERA: self._kill_camera,
            plan.START_CAMERA: self._start_camera,
            plan.KILL_ENGINE: self._kill_engine,
        }

    def ready(self) -> bool:
        """Whether the node's services have been discovered."""
        return all(client.service_is_ready() for client in (self._set, *self._enable.values()))

    def perform(self, event: Event) -> None:
        """Begin an event."""
        self.outcomes.append(Outcome(event, self._rig.now()))
        self._handlers[event.action](event)

    def observe(self) -> None:
        """Read the outcome of a model swap from the diagnostics. To be called more often than they are published."""
        index = next((index for index, outcome in enumerate(self.outcomes) if outcome.result == UNDER_WAY), None)
        if index is None:
            return
        status = self._swap_status()
        settings, message = status
        event = self.outcomes[index].event
        # The status of the former swap is published until the node begins this one.
        if status == self._former_swap or settings != f"dnn.{event.target}.model = {shown(event.value)}":
            return
        message = message or ""
        if message.startswith("failed"):
            self._set_outcome(FAILED, message, index)
        elif "took over" in message:
            self._set_outcome(DONE, message, index)

    def finish(self) -> None:
        """Wait until every request is answered and no swap is under way, at most _ANSWER_LIMIT_S."""

        def complete() -> bool:
            self.observe()
            return all(outcome.result not in (UNANSWERED, UNDER_WAY) for outcome in self.outcomes)

        self._rig.until(complete, _ANSWER_LIMIT_S)

    def close(self) -> None:
        """Stop watching overlays."""
        for topic in list(self._watched):
            self._stop_watching(topic)

    def failures(self) -> list[str]:
        """Events that were not carried out, one text for each."""
        return [
            f"{failed.event.action} {failed.event.target} {failed.event.value}: {failed.result} {failed.reason}".strip()
            for failed in self.outcomes
            if failed.result != DONE
        ]

    def done(self, action: str) -> Sequence[Outcome]:
        """The events of this action that were carried out."""
        return [outcome for outcome in self.outcomes if outcome.event.action == action and outcome.result == DONE]

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of events by action and result."""
        found: dict[str, dict[str, int]] = {action: {} for action in plan.ACTIONS}
        for outcome in self.outcomes:
            results = found[outcome.event.action]
            results[outcome.result] = results.get(outcome.result, 0) + 1
        return found

    # -- requests to the node

    def _set_parameter(self, event: Event, name: str, value: Any, accepted: str = DONE, reason: str = "") -> None:
        """accepted, reason: the outcome if the node accepts the value."""
        parameter = Parameter(name=name, value=_parameter_value(value))

        def judge(response: Any) -> tuple[str, str]:
            (result,) = response.results
            return (accepted, reason) if result.successful else (REFUSED, result.reason)

        self._request(event, self._set, SetParameters.Request(parameters=[parameter]), judge)

    def _swap_model(self, event: Event) -> None:
        """Set ``dnn.<dnn>.model``. The event is done when the diagnostics say that the new model took over.

        A swap that is still under way when the next model is set has failed: the node cancels it.
        """
        accepted, reason = UNDER_WAY, ""
        swaps = [index for index, outcome in enumerate(self.outcomes[:-1]) if outcome.event.action == plan.SWAP]
        if swaps and (former := self.outcomes[swaps[-1]]).result != DONE:
            if former.result in (UNANSWERED, UNDER_WAY):
                self._set_outcome(FAILED, "had not taken over when the next model was set", swaps[-1])
            if event.value == self._rig.config.dnns[event.target].model:
                accepted, reason = SKIPPED, "the model was not swapped"
        self._set_parameter(event, f"dnn.{event.target}.model", event.value, accepted, reason)

    def _swap_status(self) -> tuple[str | None, str | None]:
        return self._rig.value(_SWAP_STATUS, "settings"), self._rig.value(_SWAP_STATUS, "message")

    def _switch(self, event: Event) -> None:
        def judge(response: Any) -> tuple[str, str]:
            return (DONE, "") if response.success else (REFUSED, response.message)

        self._request(event, self._enable[event.target], SetBool.Request(data=event.value), judge)

    def _request(self, event: Event, client: Any, request: Any, judge: Callable[[Any], tuple[str, str]]) -> None:
        index = len(self.outcomes) - 1

        def answered(future: Any) -> None:
            if self.outcomes[index].result == UNANSWERED:
                result, reason = judge(future.result())
                if result == UNDER_WAY:
                    self._former_swap = self._swap_status()
                self._set_outcome(result, reason, index)

        client.call_async(request).add_done_callback(answered)

    # -- what needs no answer

    def _set_outcome(self, result: str = DONE, reason: str = "", index: int = -1) -> None:
        self.outcomes[index] = replace(self.outcomes[index], result=result, reason=reason, answered_s=self._rig.now())

    def _watch(self, event: Event) -> None:
        if not event.value:
            self._stop_watching(event.target)
        else:
            self.overlays.setdefault(event.target, 0)

            def receive(data: bytes) -> None:
                self.overlays[event.target] += 1

            kind = CompressedImage if event.target.endswith("/compressed") else Image
            self._watched[event.target] = self._rig.observer.create_subscription(
                kind, f"{NODE}/{event.target}", receive, QoSProfile(depth=1), raw=True
            )
        self._set_outcome()

    def _stop_watching(self, topic: str) -> None:
        self._rig.observer.destroy_subscription(self._watched.pop(topic))

    def _kill_camera(self, event: Event) -> None:
        self._rig.kill_camera(event.target)
        self._set_outcome()

    def _start_camera(self, event: Event) -> None:
        self._rig.start_camera(event.target)
        self._set_outcome()

    def _kill_engine(self, event: Event) -> None:
        """Kill an engine process that serves according to the diagnostics, with SIGKILL."""
        named = [self._rig.value(name, "pid") or "none" for name in self._rig.statuses if name.startswith("engine ")]
        pids = sorted(int(pid) for pid in named if pid != "none" and psutil.pid_exists(int(pid)))
        if not pids:
            self._set_outcome(SKIPPED, "no engine process serves")
            return
        pid = self._random.choice(pids)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            self._set_outcome(SKIPPED, f"process {pid} had already ended")
        else:
            self._set_outcome()


def _parameter_value(value: Any) -> ParameterValue:
    if isinstance(value, bool):
        return ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=value)
    if isinstance(value, int):
        return ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=value)
    if isinstance(value, float):
        return ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
    return ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=value)
