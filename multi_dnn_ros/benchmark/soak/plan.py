"""The schedule of a soak: rounds of equal length with the same events, so that all windows can be compared."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from multi_dnn_ros.benchmark.cameras import CameraPlan
from multi_dnn_ros.settings.schema import NodeConfig

RAW, JPEG, FAILING = "front", "left", "rear"
SET, ENABLE, SWAP, WATCH, KILL_CAMERA, START_CAMERA, KILL_ENGINE = (
    "set", "enable", "swap", "watch", "kill camera", "start camera", "kill engine"
)  # fmt: skip
ACTIONS = (SET, ENABLE, SWAP, WATCH, KILL_CAMERA, START_CAMERA, KILL_ENGINE)
#: Length of the compared windows. A run that is shorter than three of them is divided into thirds.
_WINDOW_S = 600.0
#: A round has about thirty events, each of which the node must accept in time.
MIN_ROUND_S = 5.0
#: A change is made and reversed at these shares of the time that it gets.
_IN_EFFECT = (0.05, 0.8)
#: Changes that get several parts of a round: configuring a model and restarting an engine process take seconds.
_PARTS = {SWAP: 4, KILL_ENGINE: 2}
#: Parts of a round in which the overlay is watched, raw and then as JPEG. It is not watched for the rest.
_WATCHED = ((RAW, "overlay", 0.0, 0.25), (JPEG, "overlay/compressed", 0.25, 0.5))
_PRIORITIES, _RATES_HZ, _THRESHOLDS = (-10, 5, 10), (1.0, 2.0, 3.0), (0.2, 0.3, 0.6)


@dataclass(frozen=True)
class Event:
    """One thing to do. at_s: since the beginning. target: parameter, DNN, topic or camera; empty for an engine."""

    at_s: float
    action: str
    target: str
    value: Any = None


@dataclass(frozen=True)
class Window:
    """Seconds since the beginning."""

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Windows:
    """The two parts of a run that are compared. Both contain the same number of rounds."""

    reference: Window
    last: Window


@dataclass(frozen=True)
class SoakPlan:
    """What a soak does. kill_every_s: time between two kills of the engine process; 0: it is neither killed nor
    replaced by a model swap, so that the same process serves for the whole run. rate_hz: rate of each camera.

    A round has one kill, so its length is kill_every_s, adjusted so that a window has whole rounds, but at least
    MIN_ROUND_S if the windows are not shorter.
    """

    seconds: float
    kill_every_s: float = 300.0
    rate_hz: float = 4.0
    seed: int = 0

    @property
    def windows(self) -> Windows:
        """The second and the last ten minutes; in a run of less than half an hour the second and the last third."""
        length = min(_WINDOW_S, self.seconds / 3.0)
        return Windows(Window(length, 2.0 * length), Window(self.seconds - length, self.seconds))

    @property
    def round_s(self) -> float:
        """Length of a round."""
        window = self.windows.reference
        length = window.end_s - window.begin_s
        rounds = round(length / (self.kill_every_s or _WINDOW_S / 2.0))
        return length / max(1, min(rounds, int(length / MIN_ROUND_S)))

    @property
    def cameras(self) -> tuple[CameraPlan, ...]:
        """One with raw images, one with JPEG, and one that is killed and started again.

        Their phases are fixed. Otherwise images that by chance arrive together after a restart, and so wait for each
        other, would change the latency of a window.
        """
        cameras = (
            CameraPlan(RAW, (640, 480), "rgb8", self.rate_hz),
            CameraPlan(JPEG, (640, 480), "", self.rate_hz),
            CameraPlan(FAILING, (480, 360), "yuv422_yuy2", self.rate_hz),
        )
        distance_ms = 1e3 / self.rate_hz / len(cameras)
        return tuple(replace(camera, phase_ms=number * distance_ms) for number, camera in enumerate(cameras))

    def events(self, config: NodeConfig) -> list[Event]:
        """All events in the order of their times; the same for the same seed. config: the node's.

        Every round has the same events at the same offsets; the seed determines their order and values. What would not
        be completed by the end of the run is left out.
        """
        draw = random.Random(self.seed)
        changes = _changes(config, draw)
        if self.kill_every_s:
            changes += [*_swap(config, draw), [(KILL_ENGINE, "", None)]]
        draw.shuffle(changes)
        first_round = [*_watching(self.round_s), *_spread(changes, self.round_s)]
        every_round = [
            [Event(event.at_s + number * self.round_s, event.action, event.target, event.value) for event in change]
            for number in range(int(self.seconds / self.round_s) + 1)
            for change in first_round
        ]
        complete = [change for change in every_round if change[-1].at_s < self.seconds]
        return sorted((event for change in complete for event in change), key=lambda event: event.at_s)


def swapped_model(model: str) -> str | None:
    """The model that replaces `model` in a soak: the decomposed one of a built-in network, or the reverse; or None."""
    if not model.startswith("builtin:"):
        return None
    return model.removesuffix("_small") if model.endswith("_small") else f"{model}_small"


def soak_config(config: NodeConfig, tracked: Sequence[str], plan: SoakPlan) -> NodeConfig:
    """`config` with tracks for the DNNs `tracked`.

    fault_window_s becomes at most half a round: the kills are independent, and two of them within that time would be
    attributed to a DNN.
    """
    dnns = {name: dnn.model_copy(update={"track": name in tracked or dnn.track}) for name, dnn in config.dnns.items()}
    window_s = max(1.0, min(config.fault_window_s, plan.round_s / 2.0))
    return config.model_copy(update={"dnns": dnns, "fault_window_s": window_s})


Step = tuple[str, str, Any]  # action, target, value


def _changes(config: NodeConfig, draw: random.Random) -> list[list[Step]]:
    """The changes of a round, which are made one after another; each is a step and the step that reverses it."""
    changes: list[list[Step]] = [[(KILL_CAMERA, FAILING, None), (START_CAMERA, FAILING, None)]]
    for name, dnn in config.dnns.items():
        new: Mapping[str, Any] = {
            "priority": draw.choice(_PRIORITIES),
            "max_rate_hz": draw.choice(_RATES_HZ),
            # A DNN with several outputs has the threshold in each of them.
            **({} if dnn.outputs else {"score_threshold": draw.choice(_THRESHOLDS)}),
        }
        changes += [
            [(SET, f"dnn.{name}.{field}", value), (SET, f"dnn.{name}.{field}", getattr(dnn, field))]
            for field, value in new.items()
        ]
        if dnn.enable:
            changes.append([(ENABLE, name, False), (ENABLE, name, True)])
    return changes


def _swap(config: NodeConfig, draw: random.Random) -> list[list[Step]]:
    """A swap of one model and its reversal, because configuring a model costs seconds on a CPU; none without a model
    to swap with.
    """
    swappable = [name for name, dnn in config.dnns.items() if swapped_model(dnn.model) is not None]
    if not swappable:
        return []
    name = draw.choice(swappable)
    model = config.dnns[name].model
    return [[(SWAP, name, swapped_model(model)), (SWAP, name, model)]]


def _spread(changes: Sequence[Sequence[Step]], round_s: float) -> list[list[Event]]:
    parts = [_PARTS.get(steps[0][0], 1) for steps in changes]
    part_s = round_s / sum(parts)
    begins = accumulate(parts, initial=0)
    return [
        [Event((begin + share * length) * part_s, *step) for share, step in zip(_IN_EFFECT, steps, strict=False)]
        for begin, length, steps in zip(begins, parts, changes, strict=False)
    ]


def _watching(round_s: float) -> list[list[Event]]:
    return [
        [Event(part * round_s, WATCH, f"{camera}/{topic}", part == begin) for part in (begin, end)]
        for camera, topic, begin, end in _WATCHED
    ]
