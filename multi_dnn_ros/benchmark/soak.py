"""The node with kills, swaps and changes, for an hour: exact accounts, and no growth from one third to the next."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.utilities import get_rmw_implementation_identifier
from std_srvs.srv import SetBool

from multi_dnn_ros.benchmark.observation import NodeSample
from multi_dnn_ros.benchmark.rig import CameraPlan, Rig
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.demo.session import NODE, ProcessEnded
from multi_dnn_ros.settings.forms import shown
from multi_dnn_ros.settings.schema import NodeConfig

#: A round has about a dozen changes, each of which the node must accept in time.
MIN_ROUND_S = 5.0
#: Allowed growth of memory from the second third of the run to the last one.
MEMORY_GROWTH = 0.02
#: A short run has this many samples, a longer one a sample every _MAX_SAMPLE_PERIOD_S: the kernel delays a process by
#: some milliseconds while its memory maps are read.
_SAMPLES = 360
_MAX_SAMPLE_PERIOD_S = 5.0
#: Share of the time of a change during which it lasts.
_IN_EFFECT = 0.75
_END_LIMIT_S = 60.0
SET, SWITCH, SWAP, KILL_ENGINE = "set", "switch", "swap", "kill engine"
#: Time limit for an answer, for new results after a fault, and for a swap, which takes as long as configuring.
ANSWER_S, _SWAP_S = 30.0, 120.0


@dataclass(frozen=True)
class SoakPlan:
    """round_s: length of a round, which has one kill of the engine process. kills: see :func:`changes_of`. rate_hz: of
    each camera: one with raw images, one with JPEG.
    """

    seconds: float
    round_s: float = 300.0
    rate_hz: float = 4.0
    seed: int = 0
    kills: bool = True

    @property
    def cameras(self) -> tuple[CameraPlan, ...]:
        return (
            CameraPlan("front", (640, 480), "rgb8", self.rate_hz),
            CameraPlan("left", (640, 480), "jpeg", self.rate_hz),
        )


def measure_soak(
    config: NodeConfig, folder: Path, plan: SoakPlan, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Run the plan; returns the figures, with `verdicts` and `passed`. config: its cameras become the plan's.
    folder: for logs. progress: called with seconds, and of how many. Raises UsageError, CommandError.

    fault_window_s becomes at most half a round: the kills are independent, and two of them within that time would be
    attributed to a DNN.
    """
    window_s = max(1.0, min(config.fault_window_s, plan.round_s / 2.0))
    with Rig(folder, config.model_copy(update={"fault_window_s": window_s}), plan.cameras, plan.seed) as rig:
        rig.sample_s = min(_MAX_SAMPLE_PERIOD_S, plan.seconds / _SAMPLES)
        actions = Actions(rig, plan.seed)
        rig.start_cameras()
        begin_s, ended_early = time.monotonic(), ""
        try:
            _carry_out(rig, plan, actions, begin_s, progress)
        except ProcessEnded as error:  # what was measured until then is judged
            ended_early = str(error)
        measured_s = time.monotonic() - begin_s
        rig.stop_cameras()
        rig.settle()  # unfinished frames fail the accounts
        streams = {f"{dnn} on {camera}": counts for (dnn, camera), counts in rig.accounts().items()}
        device = rig.value("node", "device")
        restarts = sum(int(rig.value(name, "restarts") or 0) for name in rig.statuses if name.startswith("engine "))
        rig.stop(rig.node, _END_LIMIT_S)
        failed = [
            f"{it['action']} {it['target']} {it['value']}: {it['problem']}" for it in actions.done if it["problem"]
        ]
        verdicts = [
            none_of("streams with inexact accounts", inexact(streams)),
            *growth(rig.samples, begin_s, plan.seconds),
            none_of("actions that were not carried out", failed),
            verdict("engine processes lost without a kill", max(0, restarts - actions.kills), 0),
            verdict("exit code of the node", abs(rig.node.exit_code() or 0), 0),
            none_of("processes that ended by themselves", [ended_early] if ended_early else []),
        ]
    return {
        "measured_s": measured_s,
        "runtime": get_rmw_implementation_identifier(),
        "device": device,
        "standby": rig.config.standby,
        "verdicts": verdicts,
        "passed": all(it["passed"] for it in verdicts),
        "streams": streams,
        "actions": [{**done, "at_s": done["at_s"] - begin_s} for done in actions.done],
    }


def _carry_out(
    rig: Rig, plan: SoakPlan, actions: Actions, begin_s: float, progress: Callable[[int, int], None]
) -> None:
    """Make the changes, round by round, until the time is over; the last change is reversed, and all DNNs serve."""
    changes = changes_of(rig.config, plan.seed, kills=plan.kills)
    change_s, number = plan.round_s / len(changes), 0

    def wait_until(at_s: float) -> None:
        rig.spin(max(0.0, begin_s + min(at_s, plan.seconds) - time.monotonic()))
        progress(round(min(time.monotonic() - begin_s, plan.seconds)), round(plan.seconds))

    while max(number * change_s, time.monotonic() - begin_s) < plan.seconds:
        change = changes[number % len(changes)]
        wait_until(number * change_s)
        actions.perform(change, reverse=False)
        wait_until((number + _IN_EFFECT) * change_s)
        actions.perform(change, reverse=True)
        number += 1
    wait_until(plan.seconds)


# -- changes, each carried out to its end


class ActionFailed(Exception):
    """A change was not carried out; the message says why."""


@dataclass(frozen=True)
class Change:
    """Something that is done and reversed. target: parameter or DNN. values: while the change lasts, and
    afterwards.
    """

    action: str
    target: str = ""
    values: tuple[Any, Any] = (True, False)


def changes_of(config: NodeConfig, seed: int, *, kills: bool) -> list[Change]:
    """The changes of every round, which are made one after another.

    kills: whether the engine process is killed, and replaced by a swap of a built-in model and its decomposed one.
    """
    draw = random.Random(seed)
    changes = []
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

    def _await_results(self) -> None:
        """Wait until every DNN has had a result whose image was taken from now on."""
        begin_s = time.monotonic()

        def silent() -> set[str]:
            streams = self._rig.receipts.items()
            return {dnn for (dnn, _), _ in streams} - {
                dnn for (dnn, _), found in streams if found.has_image_after(begin_s)
            }

        if not self._rig.until(lambda: not silent(), ANSWER_S):
            raise ActionFailed(f"no result of {', '.join(sorted(silent()))} in {ANSWER_S:g} s")


# -- verdicts


def verdict(name: str, value: float, limit: float, note: str = "") -> dict[str, Any]:
    """One check, for JSON. value: the figure; NaN, which fails and becomes None, if there is none. limit: the largest
    value that passes. note: what is wrong, or what was compared.
    """
    known = value if math.isfinite(value) else None
    return {"name": name, "value": known, "limit": limit, "passed": value <= limit, "note": note}


def none_of(name: str, found: Sequence[str]) -> dict[str, Any]:
    """The check that nothing of this kind was found. found: one text for each thing that was."""
    return verdict(name, len(found), 0, "; ".join(found[:5]))


def inexact(streams: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The streams whose counts, as from Rig.accounts(), do not add up after the last frame. No stream at all is wrong.

    They add up if offered = received = published + dropped, nothing is pending, and published = observed.
    """
    wrong = []
    for name, stream in streams.items():
        counts = {**stream, "dropped": sum(stream["dropped"].values())}
        exact = counts["offered"] == counts["received"] == counts["published"] + counts["dropped"]
        if not exact or counts["pending"] or counts["published"] != counts["observed"]:
            wrong.append(f"{name}: " + ", ".join(f"{key} {count}" for key, count in counts.items()))
    return wrong if streams else ["there is no stream"]


def growth(samples: Sequence[NodeSample], begin_s: float, seconds: float) -> list[dict[str, Any]]:
    """Memory, file descriptors and threads of the node and its engine processes (medians), in the last third of a run
    against the second one. Too few samples fail.
    """
    thirds = [(begin_s + part * seconds / 3.0, begin_s + (part + 1) * seconds / 3.0) for part in (1, 2)]
    found = []
    fields = {"memory": "memory_bytes", "GPU memory": "gpu_bytes", "file descriptors": "files", "threads": "threads"}
    for name, field in fields.items():
        parts = [[getattr(it, field) for it in samples if first <= it.at_s < last] for first, last in thirds]
        before, after = (float(np.median(values)) if values else math.nan for values in parts)
        if field in ("files", "threads"):
            found.append(verdict(f"growth of {name}", after - before, 0, f"{before:g} to {after:g}"))
        elif field == "memory_bytes" or before or after:
            share = after / before - 1.0 if before > 0 else math.nan
            note = f"{before / 2**20:.1f} to {after / 2**20:.1f} MiB"
            found.append(verdict(f"growth of {name}", share, MEMORY_GROWTH, note))
    return found
