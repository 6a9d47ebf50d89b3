"""The node with everything on, for an hour: is its state at the end that after ten minutes, with exact accounts?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.benchmark.accounts import stream_accounts
from multi_dnn_ros.benchmark.node_config import Stream, first_result
from multi_dnn_ros.benchmark.resource_sampler import ResourceSampler
from multi_dnn_ros.benchmark.rig import ProcessEnded, Rig
from multi_dnn_ros.benchmark.samples import Receipts
from multi_dnn_ros.benchmark.soak import plan as planned
from multi_dnn_ros.benchmark.soak import verdicts
from multi_dnn_ros.benchmark.soak.actions import Actions
from multi_dnn_ros.benchmark.soak.engines import EngineLog
from multi_dnn_ros.benchmark.soak.minutes import Minute, per_minute
from multi_dnn_ros.benchmark.soak.plan import SoakPlan, soak_config
from multi_dnn_ros.benchmark.soak.recorder import arguments, recorded_counts, recorder
from multi_dnn_ros.benchmark.soak.resources import NodeResources, SoakSample
from multi_dnn_ros.benchmark.soak.verdicts import Verdict
from multi_dnn_ros.benchmark.time_bar import time_bar
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.settings.schema import NodeConfig

_RECORDER = "multi_dnn_ros.benchmark.soak.recorder"
#: A short run has this many samples, a longer one a sample every _MAX_SAMPLE_PERIOD_S: the kernel delays a process by
#: some milliseconds while its memory maps are read.
_SAMPLES = 360
_MAX_SAMPLE_PERIOD_S = 5.0
_STEP_S = 0.1
#: Time limit for new results of all streams after the last fault, before the cameras stop.
_RECOVERY_S = 120.0
_END_LIMIT_S = 60.0


@dataclass(frozen=True)
class SoakRun:
    """Measurements and the data for plots. Times are on the monotonic clock; of events, since begin_s."""

    figures: dict[str, Any]
    receipts: Mapping[Stream, Receipts]
    samples: Sequence[SoakSample]
    events: Sequence[tuple[float, str]]
    begin_s: float
    end_s: float


def measure_soak(
    config: NodeConfig, folder: Path, plan: SoakPlan, tell: Callable[[str], None] = lambda text: None
) -> SoakRun:
    """Run the plan. config: the node's, whose cameras are replaced by the plan's. folder: for logs. tell: called with a
    line of text every minute. Raises UsageError, CommandError.
    """
    config = soak_config(config, _detecting(config), plan)
    with (
        TemporaryDirectory(prefix="multi_dnn_soak_") as recordings,
        Rig(folder, config, plan.cameras, plan.seed) as rig,
    ):
        run = _Run(rig, plan, Path(recordings) / "recording", tell)
        run.prepare()
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
    def __init__(self, rig: Rig, plan: SoakPlan, recording: Path, tell: Callable[[str], None]) -> None:
        self._rig = rig
        self._plan = plan
        self._recording = recording
        self._tell = tell
        self._samples: list[SoakSample] = []
        self._sample_s = min(_MAX_SAMPLE_PERIOD_S, plan.seconds / _SAMPLES)
        self._sampler = ResourceSampler(self._sample)
        self._resources = NodeResources(rig.node.pid)
        self._engines = EngineLog(rig)
        self._actions = Actions(rig, self._resources, self._engines, plan.seed)
        self._begin_s = self._end_s = 0.0
        self._ended_early = ""  # why
        self._silent = list(rig.switched_on)  # without a result after the end

    def prepare(self) -> None:
        """Start the recorder and the cameras, and wait for results of all streams."""
        rig = self._rig
        topics = dict(rig.result_topic(*stream) for stream in rig.streams)
        topics["/diagnostics"] = "diagnostic_msgs/msg/DiagnosticArray"
        self._recorder = rig.start_server("recorder", arguments(self._recording, topics), _RECORDER)
        if not rig.until(lambda: all(rig.observer.count_subscribers(topic) >= 2 for topic in list(topics)[:-1]), 60.0):
            raise CommandError(f"the recorder has not subscribed to all results after 60 s; see {self._recorder.log}")
        rig.spin(1.0)  # matched on both sides
        if not rig.until(self._actions.ready, 30.0):
            raise CommandError(f"not every service of the node is on the graph after 30 s; see {rig.node.log}")
        rig.start_cameras()
        rig.sample_s = 60.0  # the rig's own samples delay the processes, too

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
        finally:
            self._sampler.close()
        self._end_s = self._end_s or self._rig.now()
        self._actions.close()

    def _carry_out(self) -> None:
        rig, seconds = self._rig, self._plan.seconds
        waiting = self._plan.events(rig.config)
        self._begin_s, reported = rig.now(), 0
        with time_bar(seconds, "soak") as bar:
            while (elapsed_s := rig.now() - self._begin_s) < seconds:
                while waiting and waiting[0].at_s <= elapsed_s:
                    self._actions.perform(waiting.pop(0))
                self._sampler.sample_if_due(self._sample_s)
                self._actions.observe()
                self._engines.observe()
                if elapsed_s // 60.0 > reported:
                    reported = int(elapsed_s // 60.0)
                    self._tell(self._minutes()[reported - 1].line())
                rig.spin(min(_STEP_S, seconds - elapsed_s), progress=bar.update)
        for event in waiting:  # due in the last step
            self._actions.perform(event)
        self._end_s = rig.now()

    def _wind_down(self) -> None:
        """Wait for new results of all streams, then for the frames in progress; stop the cameras and the recorder."""
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
        rig.servers.remove(self._recorder)
        self._recorder.stop(_END_LIMIT_S)
        rig.spin(1.0)

    def finish(self) -> SoakRun:
        """Stop what still runs, the node last, and judge."""
        rig, plan = self._rig, self._plan
        for camera in plan.cameras:
            rig.stop_camera(camera.name)
        self._recorder.stop(_END_LIMIT_S)
        self._engines.observe()
        streams = stream_accounts(rig)
        device = rig.value("node", "device")
        with suppress(psutil.NoSuchProcess):
            self._resources.sample(rig.now())
        stopped_s = rig.now()
        rig.node.stop(_END_LIMIT_S)
        ended = verdicts.ended(rig.now() - stopped_s, rig.node.exit_code())
        in_recording = recorded_counts(self._recording)
        found = [
            *self._judge(streams, in_recording),
            ended,
            verdicts.none_of("left behind by the node", self._resources.left()),
            verdicts.none_of("streams without a result at the end", [" on ".join(stream) for stream in self._silent]),
            verdicts.none_of("processes that ended by themselves", [self._ended_early] if self._ended_early else []),
        ]
        figures = {
            "plan": asdict(plan),
            "measured_s": self._end_s - self._begin_s,
            "runtime": get_rmw_implementation_identifier(),
            "device": device,
            "isolation": rig.config.isolation,
            "standby": rig.config.standby,
            "fault_window_s": rig.config.fault_window_s,
            "tracked": [name for name, dnn in rig.config.dnns.items() if dnn.track],
            "round_s": plan.round_s,
            "windows": asdict(plan.windows),
            "sample_s": self._sample_s,
            "samples": len(self._samples),
            "verdicts": [verdict.described() for verdict in found],
            "passed": all(verdict.passed for verdict in found),
            "streams": streams,
            "actions": self._actions.counts(),
            "engines": self._engines.figures(),
            "engine_kills": self._answers(planned.KILL_ENGINE),
            "camera_restarts": self._answers(planned.START_CAMERA),
            "longest_pause_s": verdicts.longest_pause_s(
                rig.receipts.values(), planned.Window(0.0, self._end_s - self._begin_s), self._begin_s
            ),
            "overlay": self._overlays(),
            "recorder": recorder(),
            "recorded": in_recording,
            "minutes": [asdict(minute) for minute in self._minutes()],
            "events": [outcome.described(self._begin_s) for outcome in self._actions.outcomes],
        }  # fmt: skip
        marks = [
            (outcome.begun_s - self._begin_s, action)
            for action in planned.ACTIONS
            for outcome in self._actions.done(action)
        ]
        return SoakRun(figures, rig.receipts, self._samples, marks, self._begin_s, self._end_s)

    # -- internal

    def _sample(self) -> None:
        gpu = self._rig.value("node", "engine processes GPU reserved (bytes)") or "0"
        self._samples.append(self._resources.sample(self._rig.now(), int(gpu)))

    def _minutes(self) -> list[Minute]:
        end_s = self._end_s or self._rig.now()  # results after the end are not part of a minute
        return per_minute(self._samples, list(self._rig.receipts.values()), self._begin_s, end_s)

    def _answers(self, action: str) -> list[float | None]:
        """Seconds from each fault, or the start of a camera, until every DNN had a result of an image taken later."""
        return [
            verdicts.answer_s(self._by_dnn(outcome.event.target), outcome.begun_s)
            for outcome in self._actions.done(action)
        ]

    def _by_dnn(self, camera: str) -> list[list[Receipts]]:
        """The receipts of each DNN that is switched on, for this camera; empty: for all cameras."""
        found: dict[str, list[Receipts]] = {}
        for (dnn, name), receipts in self._rig.switched_on.items():
            if camera in ("", name):
                found.setdefault(dnn, []).append(receipts)
        return list(found.values())

    def _overlays(self) -> list[dict[str, Any]]:
        """Each period in which the overlay was watched."""
        return [
            {"topic": period.topic, "seconds": period.end_s - period.begin_s, "images": period.images}
            for period in self._actions.overlay_periods
        ]

    def _judge(self, streams: Mapping[str, Any], in_recording: Mapping[str, int] | None) -> list[Verdict]:
        rig, windows = self._rig, self._plan.windows
        published, found = {}, {}
        for dnn, camera in rig.streams:
            name = f"{dnn} on {camera}"
            published[name] = streams[name]["published"]
            found[name] = (in_recording or {}).get(rig.result_topic(dnn, camera)[0], 0)
        by_stream = {f"{dnn} on {camera}": receipts for (dnn, camera), receipts in rig.switched_on.items()}
        judged = [
            verdicts.accounts(streams),
            *verdicts.resources(self._samples, self._begin_s, windows),
            *verdicts.latency(rig.receipts.values(), self._begin_s, windows),
            verdicts.results(by_stream, self._begin_s, windows),
            verdicts.answered("the restart of a camera", self._answers(planned.START_CAMERA)),
            verdicts.none_of("actions that were not carried out", self._actions.failures()),
            verdicts.lost(self._engines.restarts, len(self._actions.done(planned.KILL_ENGINE))),
            verdicts.overlays(self._overlays()),
            verdicts.recorded(published, None if in_recording is None else found),
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
