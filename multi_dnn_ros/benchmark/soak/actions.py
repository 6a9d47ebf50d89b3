"""Carries out the changes of a soak: parameters and services of the node, cameras, the overlay's subscriber, kills."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
from rcl_interfaces.msg import Parameter
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter as TypedParameter
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_srvs.srv import SetBool

from multi_dnn_ros.benchmark.rig import NODE, Rig
from multi_dnn_ros.benchmark.soak import plan
from multi_dnn_ros.benchmark.soak.plan import Change
from multi_dnn_ros.settings.parameter_fields import shown

#: Time limit for an answer, for new results after a fault, and for a swap, which takes as long as configuring.
ANSWER_S, _SWAP_S = 30.0, 120.0


class ActionFailed(Exception):
    """A change was not carried out; the message says why."""


@dataclass(frozen=True)
class Done:
    """A change that was carried out, or reversed. at_s: on the rig's clock. seconds: until the node had answered; after
    a fault until every DNN had a result of a later image. problem: why it was not carried out.
    """

    action: str
    target: str
    value: Any
    at_s: float
    seconds: float
    problem: str = ""


class Actions:
    """Carries out changes in a rig, each to its end. seed: for choosing engine processes."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.done: list[Done] = []
        self.kills = 0
        self._rig = rig
        self._random = random.Random(seed)
        self._set = rig.observer.create_client(SetParameters, f"{NODE}/set_parameters")
        self._enable = {dnn: rig.observer.create_client(SetBool, f"{NODE}/{dnn}/enable") for dnn in rig.config.dnns}
        self._subscription: Any = None
        self._images = 0
        self._handlers: dict[str, Callable[[str, Any], None]] = {
            plan.SET: self._set_parameter,
            plan.SWAP: self._swap_model,
            plan.ENABLE: self._switch,
            plan.WATCH: self._watch,
            plan.RESTART_CAMERA: self._restart_camera,
            plan.KILL_ENGINE: self._kill_engine,
        }

    def ready(self) -> bool:
        """Whether the node's services have been discovered."""
        return all(client.service_is_ready() for client in (self._set, *self._enable.values()))

    def perform(self, change: Change, reverse: bool) -> None:
        """Make a change, or reverse it; what goes wrong is recorded in `done`."""
        value, begin_s, problem = change.former if reverse else change.value, self._rig.now(), ""
        try:
            self._handlers[change.action](change.target, value)
        except ActionFailed as error:
            problem = str(error)
        self.done.append(Done(change.action, change.target, value, begin_s, self._rig.now() - begin_s, problem))

    def _call(self, client: Any, request: Any) -> Any:
        future = client.call_async(request)
        if not self._rig.until(future.done, ANSWER_S):
            raise ActionFailed(f"no answer in {ANSWER_S:g} s")
        return future.result()

    def _set_parameter(self, name: str, value: Any) -> None:
        parameter: Parameter = TypedParameter(name, value=value).to_parameter_msg()
        (result,) = self._call(self._set, SetParameters.Request(parameters=[parameter])).results
        if not result.successful:
            raise ActionFailed(f"refused: {result.reason}")

    def _switch(self, dnn: str, on: bool) -> None:
        response = self._call(self._enable[dnn], SetBool.Request(data=on))
        if not response.success:
            raise ActionFailed(f"refused: {response.message}")

    def _swap_model(self, name: str, model: str) -> None:
        """Set ``dnn.<dnn>.model``, and wait until the diagnostics say that the new model took over."""

        def status() -> tuple[str, str]:
            return self._rig.value("model swap", "settings") or "", self._rig.value("model swap", "message") or ""

        former, begun = status(), False
        self._set_parameter(name, model)

        def ended() -> bool:
            nonlocal begun
            begun = begun or status() != former  # until then the status is that of the former swap
            settings, message = status()
            return begun and settings == f"{name} = {shown(model)}" and message.startswith(("failed", "cancelled"))

        def took_over() -> bool:
            return not ended() and begun and "took over" in status()[1]

        self._rig.until(lambda: ended() or took_over(), _SWAP_S)
        if not took_over():
            raise ActionFailed(status()[1] or f"has not taken over in {_SWAP_S:g} s")

    def _watch(self, topic: str, on: bool) -> None:
        """Subscribe to an overlay; when the subscription ends, it must have received an image."""
        if on:
            self._images = 0

            def receive(data: bytes) -> None:
                self._images += 1

            kind = CompressedImage if topic.endswith("/compressed") else Image
            self._subscription = self._rig.observer.create_subscription(
                kind, f"{NODE}/{topic}", receive, QoSProfile(depth=1), raw=True
            )
            return
        received = self._rig.until(lambda: self._images, ANSWER_S)
        self._rig.observer.destroy_subscription(self._subscription)
        if not received:
            raise ActionFailed(f"no image in {ANSWER_S:g} s")

    def _restart_camera(self, camera: str, kill: bool) -> None:
        if kill:
            self._rig.kill_camera(camera)
        else:
            self._rig.start_camera(camera)
            self._await_results(camera)

    def _kill_engine(self, target: str, kill: bool) -> None:
        """Kill an engine process that serves according to the diagnostics, with SIGKILL."""
        if not kill:
            return
        named = [self._rig.value(name, "pid") or "none" for name in self._rig.statuses if name.startswith("engine ")]
        pids = sorted(int(pid) for pid in named if pid != "none" and psutil.pid_exists(int(pid)))
        if not pids:
            raise ActionFailed("no engine process serves")
        try:
            os.kill(self._random.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            raise ActionFailed("the process had already ended") from None
        self.kills += 1
        self._await_results()

    def _await_results(self, camera: str = "") -> None:
        """Wait until every DNN (of a camera) has had a result whose image was taken from now on."""
        fault_s, streams = self._rig.now(), self._rig.switched_on
        dnns = {dnn for dnn, name in streams if camera in ("", name)}

        def silent() -> set[str]:
            serving = {dnn for (dnn, name), found in streams.items()
                       if camera in ("", name) and found.has_image_after(fault_s)}  # fmt: skip
            return dnns - serving

        if not self._rig.until(lambda: not silent(), ANSWER_S):
            raise ActionFailed(f"no result of {', '.join(sorted(silent()))} in {ANSWER_S:g} s")
