"""What `multi-dnn benchmark board` writes: the JSON file, checked when it is read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCENARIO = "board"
SCHEMA_VERSION = 1

Status = Literal["measured", "not_served", "does_not_fit", "failed", "interrupted", "not_run"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Latency(_Record):
    """From an image's stamp to the receipt of its result by an observer, milliseconds. samples: results."""

    samples: int
    min: float
    p50: float
    p95: float
    p99: float
    max: float


class Trial(_Record):
    """A trial of one rate. frames: images that each camera should have sent. results: published by the node.

    dropped: results that are missing, by reason; `not_received`: their image did not reach the node, or was not sent.
    decided: whether the bounds of the share of drops decided, not only the share itself. CPU and memory are those of
    the node with its engine processes; power, temperature and throttling those of the whole board; None: not readable.
    """

    rate_hz: float
    seconds: float
    frames: float
    results: int
    results_hz: float
    dropped: dict[str, int]
    drop_share: float
    passed: bool
    decided: bool
    latency_ms: Latency | None
    cpu_cores: float
    cpu_ms_per_result: float | None
    memory_bytes: int
    gpu_share: float | None = None
    gpu_memory_bytes: int | None = None
    power_w: float | None = None
    energy_j_per_result: float | None = None
    temperature_c: float | None = None
    hottest_sensor: str = ""
    throttled: dict[str, str] = Field(default_factory=dict)


class MixRecord(_Record):
    """One mix. dnns: models by name. status, reason: why there are no figures. start_s: time until the node was active.

    highest_hz: highest rate per camera with less than 5 % drops. failing_hz: lowest rate with more. long: index in
    `trials` of the long run at the highest rate; None: this rate has only a trial of the search.
    """

    text: str
    dnns: dict[str, str]
    cameras: int
    size: tuple[int, int]
    encoding: str
    status: Status = "not_run"
    reason: str = ""
    device: str = ""
    start_s: float | None = None
    trials: list[Trial] = Field(default_factory=list)
    highest_hz: float | None = None
    failing_hz: float | None = None
    long: int | None = None

    @model_validator(mode="after")
    def _check_long(self) -> MixRecord:
        if self.long is not None and not 0 <= self.long < len(self.trials):
            raise ValueError(f"long is {self.long}, but there are {len(self.trials)} trials")
        return self

    @property
    def at_highest(self) -> Trial | None:
        """The trial with the figures of the highest rate: the long one, or else the last one at this rate."""
        if self.highest_hz is None:
            return None
        if self.long is not None:
            return self.trials[self.long]
        found = [trial for trial in self.trials if trial.rate_hz == self.highest_hz and trial.passed]
        return found[-1] if found else None


class Board(_Record):
    """The computer. hardware: model name of a single-board computer. power_mode: a Jetson's. governor: cpufreq's."""

    cpu: str
    cores: int
    memory_bytes: int
    gpu: str | None
    gpu_memory_bytes: int | None
    kernel: str
    system: str
    runtime: str
    hardware: str = ""
    power_mode: str = ""
    governor: str = ""


class Idle(_Record):
    """The computer before the first mix. busy_share: share of all CPU cores that other programs used."""

    seconds: float
    busy_share: float
    power_w: float | None
    temperature_c: float | None


class SensorSample(_Record):
    """One reading of the sensors. at_s: measuring time so far, including the runs before --resume."""

    at_s: float
    mix: str
    power_w: float | None
    temperature_c: float | None
    clock_share: float | None = None
    throttled: bool = False


class Settings(_Record):
    """The settings that --resume must not change. The time of the run is not one of them."""

    mixes: list[str]
    cameras: int
    size: tuple[int, int]
    encoding: str
    max_rate_hz: float
    seed: int
    device: str | None


class BoardRecord(_Record):
    """The whole file."""

    scenario: Literal["board"]
    schema_version: Literal[1]
    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    minutes: float
    settings: Settings
    board: Board
    idle: Idle | None = None
    mixes: dict[str, MixRecord]
    timeline: list[SensorSample] = Field(default_factory=list)
    resumed: list[str] = Field(default_factory=list)
