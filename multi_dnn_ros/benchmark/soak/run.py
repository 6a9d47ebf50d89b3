"""The node with everything on, for an hour: is its state at the end that after ten minutes, with exact accounts?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.benchmark.rig import ProcessEnded, Rig, advance, time_bar
from multi_dnn_ros.benchmark.soak import verdicts
from multi_dnn_ros.benchmark.soak.actions import Actions
from multi_dnn_ros.benchmark.soak.plan import SoakPlan
from multi_dnn_ros.benchmark.soak.verdicts import Verdict
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.settings.schema import NodeConfig

#: A short run has this many samples, a longer one a sample every _MAX_SAMPLE_PERIOD_S: the kernel delays a process by
#: some milliseconds while its memory maps are read.
_SAMPLES = 360
_MAX_SAMPLE_PERIOD_S = 5.0
#: Share of the time of a change during which it lasts.
_IN_EFFECT = 0.75
_END_LIMIT_S = 60.0


def measure_soak(config: NodeConfig, folder: Path, plan: SoakPlan) -> dict[str, Any]:
    """Run the plan; returns the figures, with `verdicts` and `passed`. config: its cameras become the plan's.
    folder: for logs. Raises UsageError, CommandError.

    fault_window_s becomes at most half a round: the kills are independent, and two of them within that time would be
    attributed to a DNN.
    """
    window_s = max(1.0, min(config.fault_window_s, plan.round_s / 2.0))
    with Rig(folder, config.model_copy(update={"fault_window_s": window_s}), plan.cameras, plan.seed) as rig:
        rig.sample_s = min(_MAX_SAMPLE_PERIOD_S, plan.seconds / _SAMPLES)
        actions = Actions(rig, plan.seed)
        if not rig.until(actions.ready, 30.0):
            raise CommandError(f"the node's services do not answer; see {rig.node.log}")
        rig.start_cameras()
        begin_s, ended_early = rig.now(), ""
        try:
            _carry_out(rig, plan, actions, begin_s)
        except ProcessEnded as error:  # what was measured until then is judged
            ended_early = str(error)
        measured_s = rig.now() - begin_s
        for name in list(rig.cameras):
            rig.stop_camera(name)
        with suppress(CommandError):  # unfinished frames fail the accounts
            rig.settle()
        streams = {f"{dnn} on {camera}": counts for (dnn, camera), counts in rig.accounts().items()}
        device = rig.value("node", "device")
        judged = _judge(rig, plan, actions, begin_s)
        stopped_s = rig.now()
        rig.node.stop(_END_LIMIT_S)
        found = [
            verdicts.accounts(streams),
            *judged,
            verdicts.ended(rig.now() - stopped_s, rig.node.exit_code()),
            verdicts.none_of("left behind by the node", rig.processes.left()),
            verdicts.none_of("processes that ended by themselves", [ended_early] if ended_early else []),
        ]
        return {
            "plan": asdict(plan),
            "measured_s": measured_s,
            "runtime": get_rmw_implementation_identifier(),
            "device": device,
            "standby": rig.config.standby,
            "round_s": plan.round_s,
            "windows": [asdict(window) for window in plan.windows],
            "verdicts": [verdict.described() for verdict in found],
            "passed": all(verdict.passed for verdict in found),
            "streams": streams,
            "actions": [{**asdict(done), "at_s": done.at_s - begin_s} for done in actions.done],
        }


def _carry_out(rig: Rig, plan: SoakPlan, actions: Actions, begin_s: float) -> None:
    """Make the changes, round by round, until the time is over; the last change is reversed."""
    changes = plan.changes(rig.config)
    change_s = plan.round_s / len(changes)
    with time_bar(plan.seconds, "soak") as bar:

        def wait_until(at_s: float) -> None:
            rig.spin(max(0.0, begin_s + at_s - rig.now()))
            advance(bar)(rig.now() - begin_s - bar.n)

        number = 0
        while number * change_s < plan.seconds and rig.now() - begin_s < plan.seconds:
            change = changes[number % len(changes)]
            wait_until(number * change_s)
            actions.perform(change, reverse=False)
            wait_until((number + _IN_EFFECT) * change_s)
            actions.perform(change, reverse=True)
            number += 1
        wait_until(plan.seconds)


def _judge(rig: Rig, plan: SoakPlan, actions: Actions, begin_s: float) -> list[Verdict]:
    """The verdicts on what was observed while the node ran."""
    by_stream = {" on ".join(stream): found for stream, found in rig.switched_on.items()}
    restarts = sum(int(rig.value(name, "restarts") or 0) for name in rig.statuses if name.startswith("engine "))
    failed = [f"{done.action} {done.target} {done.value}: {done.problem}" for done in actions.done if done.problem]
    traced = [
        path.name
        for path in rig.logs
        if "Traceback (most recent call last)" in path.read_text(encoding="utf-8", errors="replace")
    ]
    return [
        *verdicts.resources(rig.samples, begin_s, plan.windows),
        verdicts.latency(rig.receipts.values(), begin_s, plan.windows),
        verdicts.results(by_stream, begin_s, plan.windows),
        verdicts.none_of("actions that were not carried out", failed),
        Verdict(
            "engine processes lost without a kill", max(0, restarts - actions.kills), 0, "", f"{actions.kills} kills"
        ),
        verdicts.none_of("exceptions in the logs", traced),
    ]
