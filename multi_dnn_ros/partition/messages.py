"""Messages between the command and the process of a unit. Both run the same version of this package."""

from __future__ import annotations

from dataclasses import dataclass

from multi_dnn_ros.partition.blocks import BlockForm
from multi_dnn_ros.partition.executor import NetworkRequest, OutputForm, RunTimes


@dataclass(frozen=True)
class Open:
    """Load the network; answered with Opened."""

    network: NetworkRequest
    precision: str


@dataclass(frozen=True)
class Opened:
    """See :class:`multi_dnn_ros.partition.executor.Executor`."""

    device: str
    shape: tuple[int, int, int]
    image_dtype: str
    parameters: int
    tolerance: float


@dataclass(frozen=True)
class Prepare:
    """Prepare the network for batches of `batch` images; answered with Prepared."""

    batch: int


@dataclass(frozen=True)
class Prepared:
    outputs: tuple[OutputForm, ...]


@dataclass(frozen=True)
class Attach:
    """Announces blocks, which follow this message, inputs first; answered with Attached."""

    inputs: BlockForm
    outputs: tuple[BlockForm, ...]


@dataclass(frozen=True)
class Attached:
    pass


@dataclass(frozen=True)
class Run:
    """Compute images `first` to `first + count - 1` of the attached block; answered with Ran."""

    first: int
    count: int


@dataclass(frozen=True)
class Ran:
    """begin_ns, end_ns: on the monotonic clock, which is the same for all processes of a machine."""

    begin_ns: int
    end_ns: int
    times: RunTimes


@dataclass(frozen=True)
class Measure:
    """Time the network on random images, or, with `transfer`, only copying them there and back; answered with Measured.

    samples: number of runs; fewer, but at least `min_samples`, if they take longer than limit_s in total.
    """

    batch: int
    samples: int
    min_samples: int
    limit_s: float
    transfer: bool = False


@dataclass(frozen=True)
class Measured:
    times: tuple[RunTimes, ...]


@dataclass(frozen=True)
class Failed:
    """The answer to any request that failed. text: the message of the exception."""

    text: str
    out_of_memory: bool


Request = Open | Prepare | Attach | Run | Measure
Reply = Opened | Prepared | Attached | Ran | Measured | Failed
