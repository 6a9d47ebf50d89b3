"""The jobs file of a fleet: its training jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from multi_dnn_ros.settings.forms import parse_size
from multi_dnn_ros.settings.params_file import StrictLoader

#: Most units of one job: each has a part of every batch.
MOST_UNITS = 10
#: Keys of a job that may change between two runs of the same training.
_CHANGEABLE = {"name", "priority", "checkpoint_every_s", "output"}


#: Immutable; rejects unknown keys and numbers that are not finite.
_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FleetJob(BaseModel):
    """One training job. Its keys mean the same as the options of `multi-dnn retrain` with these names."""

    model_config = _STRICT
    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64, description="unique; names the job's folder")
    model: str = Field(min_length=1, description="as MODEL of `multi-dnn retrain`")
    data: str = Field(min_length=1, description="KIND:PATH, as --data of `multi-dnn retrain`")
    weights: str = Field(default="default", description="weights of a torchvision network: a file, a name, or random")
    num_classes: int = Field(default=0, ge=0, description="classes of a torchvision network; 0: those of its weights")
    size: tuple[int, int] | None = Field(default=None, description="input size, such as 640x480; null: the model's own")
    decoder: str = Field(default="auto", description="decoder of the outputs, if the model does not name one")
    labels: tuple[str, ...] = Field(default=(), description="class names; empty: those of the model or the data")
    scenes: int = Field(default=6000, ge=1, description="for data `road`: number of training images to render")
    global_batch: int = Field(ge=MOST_UNITS, description="images per step, over all units of the job")
    epochs: int | None = Field(default=None, ge=1, description="length in epochs; either this or `steps`")
    steps: int | None = Field(default=None, ge=1, description="length in steps")
    priority: float = Field(default=1.0, gt=0, le=100, description="weight of the job's slow-down")
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description="optimizer")
    lr: float = Field(default=1e-3, gt=0, le=100, description="highest learning rate")
    weight_decay: float = Field(default=0.02, ge=0, description="weight decay")
    warm_up: float = Field(default=1.0, ge=0, description="epochs over which the learning rate rises")
    label_smoothing: float = Field(default=0.1, ge=0, le=1, description="label smoothing of classifiers")
    precision: Literal["fp32", "bf16"] = Field(default="bf16", description="of the forward pass on a GPU")
    seed: int = Field(default=0, ge=0, description="seed of order, augmentation and dropout")
    checkpoint_every_s: float = Field(default=60.0, gt=0, description="seconds between checkpoints")
    output: Path | None = Field(default=None, description="file for the trained network; null: in the job's folder")

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the training, as JSON values: all keys but those that may change before it continues."""
        return self.model_dump(mode="json", exclude=_CHANGEABLE)

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


class JobsFile(BaseModel):
    """The whole file."""

    model_config = _STRICT
    period_s: float = Field(default=30.0, gt=0, le=86400, description="longest time between decisions, seconds")
    jobs: tuple[FleetJob, ...] = Field(min_length=1, description="the training jobs")

    @model_validator(mode="after")
    def _unique_names(self) -> JobsFile:
        names = [job.name for job in self.jobs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"several jobs are named {', '.join(twice)}")
        return self


def read_jobs_file(path: Path) -> JobsFile:
    """The content of the file. Raises ValueError with every problem: the job, the key and what is allowed."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), StrictLoader)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(document, Mapping):
        found = "nothing" if document is None else type(document).__name__
        raise ValueError(f"{path}: expected a mapping with the key `jobs`, found {found}")
    try:
        return JobsFile.model_validate(document)
    except ValidationError as error:
        problems = [_problem(document, dict(each)) for each in error.errors()]
        raise ValueError(f"{path}: {'; '.join(problems)}") from None


def _problem(document: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    where = list(error["loc"])
    fields, prefix = JobsFile.model_fields, ""
    if len(where) > 1 and where[0] == "jobs" and isinstance(where[1], int):
        job = document["jobs"][where[1]]
        name = f"'{job['name']}'" if isinstance(job, Mapping) and "name" in job else where[1] + 1
        prefix = f"job {name}: "
        fields, where = FleetJob.model_fields, where[2:]
    key = ".".join(map(str, where))
    if error["type"] == "extra_forbidden":
        return f"{prefix}unknown key '{key}'; allowed: {', '.join(fields)}"
    if error["type"] == "missing":
        return f"{prefix}key '{key}' is missing"
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{prefix}{key} = {error['input']!r}: {text}" if key else f"{prefix}{text}"
