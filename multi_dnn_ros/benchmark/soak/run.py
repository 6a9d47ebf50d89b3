"""The node with everything on, for an hour: is its state at the end that after ten minutes, with exact accounts?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.benchmark.node_config import Stream, first_result
from multi_dnn_ros.benchmark.observation import Receipts
from multi_dnn_ros.benchmark.rig import ProcessEnded, Rig
from multi_dnn_ros.benchmark.soak import plan as planned
from multi_dnn_ros.benchmark.soak import verdicts
from multi_dnn_ros.benchmark.soak.actions import Actions
from multi_dnn_ros.benchmark.soak.plan import SoakPlan, soak_config
from multi_dnn_ros.benchmark.soak.verdicts import Verdict
from multi_dnn_ros.benchmark.time_bar import time_bar
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.settings.schema import NodeConfig

#: A short run has this many samples, a longer one a sample every _MAX_SAMPLE_PERIOD_S: the kernel delays a process by
#: some milliseconds while its memory maps are read.
_SAMPLES = 360
_MAX_SAMPLE_PERIOD_S = 5.0
_STEP_S = 0.1
_MINUTE_S = 60.0
#: Time limit for new results of all streams after the last fault, before the cameras stop.
_RECOVERY_S = 120.0
_END_LIMIT_S = 60.0


def measure_soak(
    config: NodeConfig, folder: Path, plan: SoakPlan, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Run the plan; returns the figures, with `verdicts` and `passed`. config: its cameras become the plan's.
    folder: for logs. tell: called with a line of text every minute. Raises UsageError, CommandError.
    """
    config = soak_config(config, _detecting(config), plan)
    with Rig(folder, config, plan.cameras, plan.seed) as rig:
        run = _Run(rig, plan, tell)
        run.observe()
        return run.finish()


def _detecting(config: NodeConfig) -> list[str]:
    """DNNs with a single result that consists of boxes, so that these can be tracked. DNNs whose kind of result only
    the model determines are left out.
    """
    found = []
    for name, dnn in config.dnns.items():
        with suppress(ExtensionError):
            if not dnn.outputs and first_result(name, dnn)[1].name == "detections":
                found.append(name)
    return found


class _Run:
    def __init__(self, rig: Rig, plan: SoakPlan, tell: Callable[[str], None]) -> None:
        self._rig = rig
        self._plan = plan
        self._tell = tell
        self._actions = Actions(rig, plan.seed)
        self._ended_early = ""  # why
        self._silent = list(rig.switched_on)  # without a result after the end
        if not rig.until(self._actions.ready, 30.0):
            raise CommandError(f"not every service of the node is on the graph after 30 s; see {rig.node.log}")
        rig.start_cameras()
        rig.sample_s = min(_MAX_SAMPLE_PERIOD_S, plan.seconds / _SAMPLES)
        self._begin_s = self._end_s = rig.now()

    def observe(self) -> None:
        """Carry out the events for the length of the run, and wait until the node has recovered from the last fault.

        A process that ends by itself ends the run: what was measured until then is judged.
        """
        try:
            self._carry_out()
            self._actions.finish()
            self._wind_down()
        except ProcessEnded as error:
            self._ended_early = str(error)
            self._end_s = self._rig.now()
        self._actions.close()

    def _carry_out(self) -> None:
        rig, seconds = self._rig, self._plan.seconds
        waiting, reported = self._plan.events(rig.config), 0
        with time_bar(seconds, "soak") as bar:
            while (elapsed_s := rig.now() - self._begin_s) < seconds:
                while waiting and waiting[0].at_s <= elapsed_s:
                    self._actions.perform(waiting.pop(0))
                self._actions.observe()
                if elapsed_s // _MINUTE_S > reported:
                    minute = self._minute(reported, self._begin_s + _MINUTE_S * (reported + 1))
                    self._tell(", ".join(f"{name} {value:.4g}" for name, value in minute.items() if value is not None))
                    reported += 1
                rig.spin(min(_STEP_S, seconds - elapsed_s), progress=bar.update)
        for event in waiting:  # due in the last step
            self._actions.perform(event)
        self._end_s = rig.now()

    def _wind_down(self) -> None:
        """Wait for new results of all streams, then for the frames in progress; stop the cameras."""
        rig = self._rig
        expected = rig.switched_on
        seen = {stream: len(receipts) for stream, receipts in expected.items()}

        def silent() -> list[Stream]:
            return [stream for stream, receipts in expected.items() if len(receipts) <= seen[stream]]

        rig.until(lambda: not silent(), _RECOVERY_S)
        self._silent = silent()
        for camera in self._plan.cameras:
            rig.stop_camera(camera.name)
        with suppress(CommandError):  # unfinished frames fail the accounts; if the node has ended, spin() raises again
            rig.settle()
        rig.spin(1.0)

    def finish(self) -> dict[str, Any]:
        """Stop what still runs, the node last, and judge."""
        rig, plan = self._rig, self._plan
        for camera in plan.cameras:
            rig.stop_camera(camera.name)
        streams = {f"{dnn} on {camera}": counts for (dnn, camera), counts in rig.accounts().items()}
        device = rig.value("node", "device")
        stopped_s = rig.now()
        rig.node.stop(_END_LIMIT_S)
        found = [
            verdicts.accounts(streams),
            *self._judge(),
            verdicts.ended(rig.now() - stopped_s, rig.node.exit_code()),
            verdicts.none_of("left behind by the node", rig.processes.left()),
            verdicts.none_of("streams without a result at the end", [" on ".join(stream) for stream in self._silent]),
            verdicts.none_of("processes that ended by themselves", [self._ended_early] if self._ended_early else []),
        ]
        count = max(1, math.ceil((self._end_s - self._begin_s - 1.0) / _MINUTE_S))  # the last step is not a minute
        return {
            "plan": asdict(plan),
            "measured_s": self._end_s - self._begin_s,
            "runtime": get_rmw_implementation_identifier(),
            "device": device,
            "standby": rig.config.standby,
            "round_s": plan.round_s,
            "windows": asdict(plan.windows),
            "verdicts": [verdict.described() for verdict in found],
            "passed": all(verdict.passed for verdict in found),
            "streams": streams,
            "actions": self._actions.counts(),
            "overlays": self._actions.overlays,
            "minutes": [self._minute(index, self._end_s) for index in range(count)],
            "events": [outcome.described(self._begin_s) for outcome in self._actions.outcomes],
        }

    # -- internal

    def _minute(self, index: int, end_s: float) -> dict[str, Any]:
        """Figures of one minute, the last one up to end_s: memory, files and threads are medians; None without any."""
        first_s = self._begin_s + index * _MINUTE_S
        last_s = min(end_s, first_s + _MINUTE_S)
        latencies = [ms for stream in self._rig.receipts.values() for ms in stream.between(first_s, last_s)]
        samples = [it for it in self._rig.samples if first_s <= it.at_s < last_s]
        p50, p95, p99 = np.percentile(latencies, verdicts.PERCENTILES).tolist() if latencies else (None, None, None)

        def median(values: Sequence[float]) -> float | None:
            return float(np.median(values)) if values else None

        return {
            "minute": index + 1,
            "results": len(latencies),
            "results_per_s": len(latencies) / max(last_s - first_s, 1e-9),
            "p50_ms": p50,
            "p95_ms": p95,
            "p99_ms": p99,
            "samples": len(samples),
            "memory_mib": median([it.memory_bytes / 2**20 for it in samples]),
            "gpu_mib": median([it.gpu_bytes / 2**20 for it in samples]),
            "files": median([it.files for it in samples]),
            "threads": median([it.threads for it in samples]),
        }

    def _answers(self, action: str) -> list[float | None]:
        """Seconds from each fault, or the start of a camera, until every DNN had a result of an image taken later."""
        found = []
        for outcome in self._actions.done(action):
            dnns: dict[str, list[Receipts]] = {}
            for (dnn, camera), receipts in self._rig.switched_on.items():
                if outcome.event.target in ("", camera):
                    dnns.setdefault(dnn, []).append(receipts)
            found.append(verdicts.answer_s(dnns.values(), outcome.begun_s))
        return found

    def _judge(self) -> list[Verdict]:
        rig, windows = self._rig, self._plan.windows
        by_stream: Mapping[str, Receipts] = {" on ".join(stream): found for stream, found in rig.switched_on.items()}
        kills = len(self._actions.done(planned.KILL_ENGINE))
        restarts = sum(int(rig.value(name, "restarts") or 0) for name in rig.statuses if name.startswith("engine "))
        judged = [
            *verdicts.resources(rig.samples, self._begin_s, windows),
            *verdicts.latency(rig.receipts.values(), self._begin_s, windows),
            verdicts.results(by_stream, self._begin_s, windows),
            verdicts.answered("the restart of a camera", self._answers(planned.START_CAMERA)),
            verdicts.none_of("actions that were not carried out", self._actions.failures()),
            Verdict("engine processes lost without a kill", max(0, restarts - kills), 0, "", f"{kills} kills"),
            verdicts.none_of(
                "overlays without an image", [topic for topic, images in self._actions.overlays.items() if not images]
            ),
            verdicts.none_of("exceptions in the logs", _tracebacks(rig.logs)),
        ]
        if self._plan.kill_every_s:
            judged.append(verdicts.answered("a kill of the engine process", self._answers(planned.KILL_ENGINE)))
        return judged


def _tracebacks(logs: Sequence[Path]) -> list[str]:
    """Names of the logs that contain the traceback of an exception."""
    return [
        path.name
        for path in logs
        if "Traceback (most recent call last)" in path.read_text(encoding="utf-8", errors="replace")
    ]
