"""The changes of a soak, each carried out to its end: parameters and services of the node, model swaps, and kills."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any

import psutil
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import SetBool

from multi_dnn_ros.benchmark.rig import NODE, Rig
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.settings.parameter_fields import shown
from multi_dnn_ros.settings.schema import NodeConfig

SET, SWITCH, SWAP, RESTART_CAMERA, KILL_ENGINE = ("set", "switch", "swap", "restart camera", "kill engine")
#: Time limit for an answer, for new results after a fault, and for a swap, which takes as long as configuring.
ANSWER_S, _SWAP_S = 30.0, 120.0


class ActionFailed(Exception):
    """A change was not carried out; the message says why."""


@dataclass(frozen=True)
class Change:
    """Something that is done and reversed. target: parameter, DNN or camera. values: while the change lasts, and
    afterwards.
    """

    action: str
    target: str = ""
    values: tuple[Any, Any] = (True, False)


def changes_of(config: NodeConfig, camera: str, seed: int, *, kills: bool) -> list[Change]:
    """The changes of every round, which are made one after another. camera: the one that is killed and started again.

    kills: whether the engine process is killed, and replaced by a swap of a built-in model and its decomposed one.
    """
    draw = random.Random(seed)
    changes = [Change(RESTART_CAMERA, camera)]
    for name, dnn in config.dnns.items():
        new = {"priority": draw.choice((-10, 5, 10)), "max_rate_hz": draw.choice((1.0, 2.0, 3.0))}
        changes += [Change(SET, f"dnn.{name}.{field}", (value, getattr(dnn, field))) for field, value in new.items()]
        changes.append(Change(SWITCH, name, (False, True)))
    models = {name: dnn.model for name, dnn in config.dnns.items() if dnn.model.startswith("builtin:")}
    if kills:
        changes.append(Change(KILL_ENGINE))
    if kills and models:  # one swap in each round, because configuring a model costs seconds on a CPU
        name = draw.choice(list(models))
        model = models[name]
        other = model.removesuffix("_small") if model.endswith("_small") else f"{model}_small"
        changes.append(Change(SWAP, f"dnn.{name}.model", (other, model)))
    draw.shuffle(changes)
    return changes


class Actions:
    """Carries out changes in a rig. done: each with its time on the rig's clock, the seconds until the node had
    answered (after a fault until every DNN had a result of a later image), and why it failed. kills: of engines.
    """

    def __init__(self, rig: Rig, seed: int) -> None:
        self.done: list[dict[str, Any]] = []
        self.kills = 0
        self._rig = rig
        self._random = random.Random(seed)
        self._set = rig.observer.create_client(SetParameters, f"{NODE}/set_parameters")
        self._enable = {dnn: rig.observer.create_client(SetBool, f"{NODE}/{dnn}/enable") for dnn in rig.config.dnns}
        if not rig.until(lambda: all(it.service_is_ready() for it in (self._set, *self._enable.values())), ANSWER_S):
            raise CommandError(f"the node's services do not answer; see {rig.node.log}")

    def perform(self, change: Change, reverse: bool) -> None:
        """Make a change, or reverse it; what goes wrong is recorded in `done`."""
        target, value, begin_s, problem = change.target, change.values[reverse], time.monotonic(), ""
        try:
            if change.action in (SET, SWAP):
                self._set_parameter(target, value, swaps=change.action == SWAP)
            elif change.action == SWITCH:
                response = self._call(self._enable[target], SetBool.Request(data=value))
                if not response.success:
                    raise ActionFailed(f"refused: {response.message}")
            elif change.action == RESTART_CAMERA and value:
                self._rig.stop_cameras(target, kill=True)
            elif change.action == RESTART_CAMERA:
                self._rig.start_camera(target)
                self._await_results(target)
            elif value:
                self._kill_engine()
        except ActionFailed as error:
            problem = str(error)
        self.done.append({"action": change.action, "target": target, "value": value, "at_s": begin_s,
                          "seconds": time.monotonic() - begin_s, "problem": problem})  # fmt: skip

    def _call(self, client: Any, request: Any) -> Any:
        future = client.call_async(request)
        if not self._rig.until(future.done, ANSWER_S):
            raise ActionFailed(f"no answer in {ANSWER_S:g} s")
        return future.result()

    def _set_parameter(self, name: str, value: Any, *, swaps: bool) -> None:
        """Set a parameter. swaps: it is a DNN's model; wait until the diagnostics say that this took over."""

        def status() -> tuple[str, str]:
            return self._rig.value("model swap", "settings") or "", self._rig.value("model swap", "message") or ""

        former = status()  # until it differs it is that of the former swap
        parameter = Parameter(name, value=value).to_parameter_msg()
        (result,) = self._call(self._set, SetParameters.Request(parameters=[parameter])).results
        if not result.successful:
            raise ActionFailed(f"refused: {result.reason}")
        ends = ("failed", "cancelled", "took over")
        if swaps and not (
            self._rig.until(lambda: status() != former and any(end in status()[1] for end in ends), _SWAP_S)
            and status()[0] == f"{name} = {shown(value)}"
            and "took over" in status()[1]
        ):
            raise ActionFailed(status()[1] or f"has not taken over in {_SWAP_S:g} s")

    def _kill_engine(self) -> None:
        """Kill an engine process that serves according to the diagnostics, with SIGKILL."""
        named = [self._rig.value(name, "pid") or "none" for name in self._rig.statuses if name.startswith("engine ")]
        pids = sorted(int(pid) for pid in named if pid != "none" and psutil.pid_exists(int(pid)))
        if not pids:
            raise ActionFailed("no engine process serves")
        os.kill(self._random.choice(pids), signal.SIGKILL)
        self.kills += 1
        self._await_results()

    def _await_results(self, camera: str = "") -> None:
        """Wait until every DNN (on a camera) has had a result whose image was taken from now on."""
        begin_s = time.monotonic()

        def silent() -> set[str]:
            streams = [stream for stream in self._rig.receipts.items() if camera in ("", stream[0][1])]
            serving = {dnn for (dnn, _), found in streams if found.has_image_after(begin_s)}
            return {dnn for (dnn, _), _ in streams} - serving

        if not self._rig.until(lambda: not silent(), ANSWER_S):
            raise ActionFailed(f"no result of {', '.join(sorted(silent()))} in {ANSWER_S:g} s")
