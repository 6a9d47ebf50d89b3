"""The schedule of a soak: rounds of equal length with the same changes, so that all windows can be compared."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from multi_dnn_ros.benchmark.cameras import CameraPlan
from multi_dnn_ros.settings.schema import NodeConfig

RAW, JPEG, FAILING = "front", "left", "rear"
SET, ENABLE, SWAP, WATCH, RESTART_CAMERA, KILL_ENGINE = (
    "set", "enable", "swap", "watch", "restart camera", "kill engine"
)  # fmt: skip
#: Length of the compared windows. A run that is shorter than three of them is divided into thirds.
_WINDOW_S = 600.0
#: A round has about fifteen changes, each of which the node must accept in time.
MIN_ROUND_S = 5.0
_PRIORITIES, _RATES_HZ, _THRESHOLDS = (-10, 5, 10), (1.0, 2.0, 3.0), (0.2, 0.3, 0.6)


@dataclass(frozen=True)
class Change:
    """Something that is done and reversed. target: parameter, DNN, topic or camera. value: while the change lasts.
    former: value before and after.
    """

    action: str
    target: str = ""
    value: Any = True
    former: Any = False


@dataclass(frozen=True)
class Window:
    """Seconds since the beginning."""

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class SoakPlan:
    """What a soak does. kill_every_s: time between two kills of the engine process; 0: it is neither killed nor
    replaced by a model swap, so that the same process serves for the whole run. rate_hz: rate of each camera.
    """

    seconds: float
    kill_every_s: float = 300.0
    rate_hz: float = 4.0
    seed: int = 0

    @property
    def windows(self) -> tuple[Window, Window]:
        """The compared parts of the run, of the same number of rounds: the second and the last ten minutes; in a run
        of less than half an hour the second and the last third.
        """
        length = min(_WINDOW_S, self.seconds / 3.0)
        return Window(length, 2.0 * length), Window(self.seconds - length, self.seconds)

    @property
    def round_s(self) -> float:
        """Length of a round, which has one kill: kill_every_s, adjusted so that a window has whole rounds, but at least
        MIN_ROUND_S if the windows are not shorter.
        """
        length = self.windows[0].end_s - self.windows[0].begin_s
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

    def changes(self, config: NodeConfig) -> list[Change]:
        """The changes of every round, which are made one after another. config: the node's. The seed determines order
        and values.
        """
        draw = random.Random(self.seed)
        changes = [Change(RESTART_CAMERA, FAILING), Change(WATCH, f"{RAW}/overlay")]
        changes.append(Change(WATCH, f"{JPEG}/overlay/compressed"))
        for name, dnn in config.dnns.items():
            new: Mapping[str, Any] = {
                "priority": draw.choice(_PRIORITIES),
                "max_rate_hz": draw.choice(_RATES_HZ),
                # A DNN with several outputs has the threshold in each of them.
                **({} if dnn.outputs else {"score_threshold": draw.choice(_THRESHOLDS)}),
            }
            changes += [Change(SET, f"dnn.{name}.{field}", value, getattr(dnn, field)) for field, value in new.items()]
            if dnn.enable:
                changes.append(Change(ENABLE, name, False, True))
        if self.kill_every_s:
            changes.append(Change(KILL_ENGINE))
            models = {name: dnn.model for name, dnn in config.dnns.items() if dnn.model.startswith("builtin:")}
            if models:  # one swap in each round, because configuring a model costs seconds on a CPU
                name = draw.choice(list(models))
                changes.append(Change(SWAP, f"dnn.{name}.model", _other_model(models[name]), models[name]))
        draw.shuffle(changes)
        return changes


def _other_model(model: str) -> str:
    """The decomposed model of a built-in network, or the reverse."""
    return model.removesuffix("_small") if model.endswith("_small") else f"{model}_small"
