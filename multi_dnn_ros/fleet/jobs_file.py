"""The file of a fleet: its training jobs, and how they share the units."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from multi_dnn_ros.common.image_size import parse_size
from multi_dnn_ros.fleet.shares import TENTHS, Thresholds
from multi_dnn_ros.fleet.sharing import Policy
from multi_dnn_ros.planning.file_model import FileModel
from multi_dnn_ros.settings.params_file import StrictLoader
from multi_dnn_ros.settings.params_sections import read_text

#: Keys of a job that may change between two runs of the same training.
_CHANGEABLE = {"name", "priority", "checkpoint_every_s", "join_limit_s", "busy_limit_s", "start_after_s", "output"}
#: Highest value of the time limits of a job: a year. PyTorch does not accept arbitrarily long waits.
MAX_LIMIT_S = 31_536_000.0


class JobsFileError(ValueError):
    """The file of a fleet cannot be used; the message names the file, the job, the key and what is allowed."""


class FleetJob(FileModel):
    """One training job. Its keys mean the same as the options of `multi-dnn retrain` with these names."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64, description="unique; names its folder and log")
    model: str = Field(min_length=1, description="as MODEL of `multi-dnn retrain`")
    data: str = Field(min_length=1, description="KIND:PATH, as --data of `multi-dnn retrain`")
    weights: str = Field(default="default", description="weights of a torchvision network: a file, a name, or random")
    num_classes: int = Field(default=0, ge=0, description="classes of a torchvision network; 0: those of its weights")
    size: tuple[int, int] | None = Field(default=None, description="input size, such as 640x480; null: the model's own")
    decoder: str = Field(default="auto", description="decoder of the outputs, if the model does not name one")
    labels: tuple[str, ...] = Field(default=(), description="class names; empty: those of the model or the data")
    scenes: int = Field(default=6000, ge=1, description="for data `road`: number of training images to render")
    global_batch: int = Field(ge=TENTHS, description="images per step, over all units")
    epochs: int | None = Field(default=None, ge=1, description="length in epochs; either this or `steps`")
    steps: int | None = Field(default=None, ge=1, description="length in steps")
    priority: float = Field(default=1.0, gt=0, le=100, description="weight of the job's slow-down")
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description="optimizer")
    lr: float = Field(default=1e-3, gt=0, le=100, description="highest learning rate")
    weight_decay: float = Field(default=0.02, ge=0, description="weight decay")
    warm_up: float = Field(default=1.0, ge=0, description="epochs over which the learning rate rises")
    label_smoothing: float = Field(default=0.1, ge=0, le=1, description="label smoothing of classifiers")
    precision: Literal["fp32", "bf16", "fp64"] = Field(
        default="bf16",
        description="precision of the forward pass on a GPU; fp64: everything, on any unit; slow, to check results",
    )
    batch_norm: Literal["global", "local"] = Field(
        default="global",
        description="statistics of batch normalization over the global batch, or each unit's part",
    )
    seed: int = Field(default=0, ge=0, description="seed of order, augmentation and dropout")
    checkpoint_every_s: float = Field(default=60.0, gt=0, description="seconds between checkpoints")
    join_limit_s: float = Field(
        default=600.0,
        gt=0,
        le=MAX_LIMIT_S,
        description="longest time from other shares until the second step with them; then the job counts as hung",
    )
    busy_limit_s: float = Field(
        default=7200.0,
        gt=0,
        le=MAX_LIMIT_S,
        description="longest time for reading the data, for a checkpoint and for scoring; then the job counts as hung",
    )
    start_after_s: float = Field(default=0.0, ge=0, description="seconds from the fleet's start until the job is added")
    output: Path | None = Field(default=None, description="file for the trained network; null: in the job's folder")

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the training, as JSON values: all keys but those that may change before it continues."""
        return {key: value for key, value in self.model_dump(mode="json").items() if key not in _CHANGEABLE}

    @field_validator("size", mode="before")
    @classmethod
    def _parse_size(cls, value: Any) -> Any:
        """WIDTHxHEIGHT as on the command line, or a list of width and height."""
        return parse_size(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_length(self) -> FleetJob:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


class JobsFile(FileModel):
    """The whole file."""

    policy: Policy = Field(
        default="fair", description="fair: shares change; even and `one unit`: they do not, for comparison"
    )
    period_s: float = Field(default=30.0, gt=0, le=86400, description="seconds between decisions")
    slow_down_threshold: float = Field(
        default=0.1, ge=0, description="fraction by which the largest slow-down must exceed the mean of the others"
    )
    use_threshold: float = Field(
        default=0.2, ge=0, le=1, description="difference in use of busiest and least used unit above which use decides"
    )
    gain: float = Field(
        default=0.02, gt=0, lt=1, description="minimum reduction of a slow-down for which a change is kept"
    )
    turns: bool = Field(
        default=True,
        description="policy fair: jobs that share units train in turns, with the earliest deadline first, instead of "
        "at the same time",
    )
    jobs: tuple[FleetJob, ...] = Field(min_length=1, description="the training jobs")

    @property
    def thresholds(self) -> Thresholds:
        return Thresholds(self.slow_down_threshold, self.use_threshold)

    @model_validator(mode="after")
    def _unique_names(self) -> JobsFile:
        names = [job.name for job in self.jobs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"several jobs are named {', '.join(twice)}")
        return self


def read_jobs_file(path: Path) -> JobsFile:
    """The content of the file. Raises JobsFileError with every problem of the file."""
    try:
        document = yaml.load(read_text(path), StrictLoader)
    except OSError as error:
        raise JobsFileError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise JobsFileError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(document, Mapping):
        raise JobsFileError(f"{path}: expected a mapping with the key `jobs`, found {_found(document)}")
    if document.get("jobs") == []:
        raise JobsFileError(f"{path}: `jobs` is empty; expected at least one job")
    try:
        return JobsFile.model_validate(document)
    except ValidationError as error:
        # Invalid jobs are left out of the list, so an error that it is too short then says nothing about the file.
        found = [each for each in error.errors() if each["type"] != "too_short" or not each["input"]]
        problems = "; ".join(_problem(document, dict(each)) for each in found)
        raise JobsFileError(f"{path}: {problems}") from None


def _problem(document: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    where = list(error["loc"])
    fields, prefix = JobsFile.model_fields, ""
    if len(where) > 1 and where[0] == "jobs" and isinstance(where[1], int):
        prefix = f"{_job_name(document, where[1])}: "
        fields, where = FleetJob.model_fields, where[2:]
    key = ".".join(map(str, where))
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, fields, 1)
        hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(fields)}"
        return f"{prefix}unknown key '{key}'; {hint}"
    if error["type"] == "missing":
        return f"{prefix}key '{key}' is missing"
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{prefix}{key} = {error['input']!r}: {text}" if key else f"{prefix}{text}"


def _found(document: object) -> str:
    if document is None:
        return "nothing"
    return "a list" if isinstance(document, list) else f"'{document}'"


def _job_name(document: Mapping[str, Any], index: int) -> str:
    try:
        return f"job '{document['jobs'][index]['name']}'"
    except (KeyError, TypeError, IndexError):
        return f"job {index + 1}"
