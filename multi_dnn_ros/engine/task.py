"""What the engine is given to run, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from multi_dnn_ros.engine.frame import Frame

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.backends import Stage, Tensors


@dataclass(frozen=True)
class DnnTask:
    """One DNN as the engine sees it: a chain of stages; what they compute is not the engine's business.

    preprocess: (H, W, 3) uint8 image on the device -> inputs of the first stage; runs inside the first job.
    stages: each takes the tensors that its predecessor carried over and returns those for its successor; one job each.
    single_launch: by number of images, all stages for so many as a single launch on a GPU, with the same results in the
    same place, or a single call on a CPU; run where no job that waits comes before the frame's next.
    decode: raw outputs on the CPU and the image's (height, width) -> result; runs in the DNN's thread.
    cameras: whose frames it takes, one mailbox each.
    priority: higher goes first under the priority policy. deadline_ns: from arrival, for EDF and the statistics; None:
    no deadline. max_age_ns: a frame that waited longer is dropped; None: never.
    sms: of a GPU, that its jobs run on; the stages were made ready for that share. 0: all.
    specialize: called once with each (height, width) of images that came through, while no job runs, to make
    preprocessing faster for it. in_place: preprocessing writes where the stages read, so that it may begin only when
    the frame before is through.
    batches: stages that take so many images at once, one behind the other in the first dimension of every input and
    output, by their number (2 or more); with them, frames of several cameras that wait together are one inference.
    batch_delay_ns: how long a DNN that could begin waits for those of the other cameras.
    condense: run on a GPU behind the last stage, for single images: of the raw outputs what `decode` reads; None: all.
    remaining_ns: by job, what a frame takes from its start to the end of the last job, for the slack of EDF; None: not
    known.
    """

    name: str
    cameras: tuple[str, ...]
    preprocess: Callable[[torch.Tensor], Tensors]
    stages: tuple[Stage, ...]
    decode: Callable[[Tensors, tuple[int, int]], Any]
    priority: int = 0
    deadline_ns: int | None = None
    max_age_ns: int | None = None
    sms: int = 0
    specialize: Callable[[tuple[int, int]], None] | None = None
    in_place: bool = False
    batches: Mapping[int, tuple[Stage, ...]] = field(default_factory=dict, hash=False)
    batch_delay_ns: int = 0
    condense: Callable[[Tensors], Tensors] | None = None
    remaining_ns: tuple[int, ...] | None = None
    single_launch: Mapping[int, Stage] = field(default_factory=dict, hash=False)

    @property
    def max_batch(self) -> int:
        """Most frames of one inference: no two of them are of the same camera."""
        return min(max(self.batches, default=1), len(self.cameras))

    def stages_for(self, images: int) -> tuple[int, tuple[Stage, ...]]:
        """The smallest batch that so many images fit into, and its stages."""
        if images == 1:
            return 1, self.stages
        size = min(size for size in self.batches if size >= images)
        return size, self.batches[size]


class DropReason(str, Enum):
    """Why a frame gave no result; every offered frame ends as a result or as one of these."""

    OVERWRITTEN = "overwritten"  # a newer frame of the camera came before the DNN was free
    TOO_OLD = "too_old"  # waited longer than the maximum age
    BAD_IMAGE = "bad_image"  # the image could not be decoded
    DNN_ERROR = "dnn_error"  # preprocessing or a layer raised
    BAD_OUTPUT = "bad_output"  # the raw outputs could not be decoded (NaN, wrong shape)
    PUBLISH_ERROR = "publish_error"  # the receiver of the result raised
    DISABLED = "disabled"  # the DNN was disabled after too many failures in a row
    SHUTDOWN = "shutdown"  # the engine stopped first
    ENGINE_LOST = "engine_lost"  # the engine process ended, or was ended, while the frame was under way


class Timing(NamedTuple):
    """Where the time of one frame went, nanoseconds on the engine's clock.

    Frames of several cameras in one inference share pre_ns, queue_ns and compute_ns; batch: how many they were.
    """

    received_ns: int
    started_ns: int  # taken from the mailbox
    finished_ns: int  # result decoded
    pre_ns: int  # upload, preprocessing (host time)
    queue_ns: int  # sum over the jobs: waiting in the shared queue
    compute_ns: int  # sum over the jobs: running (GPU time on CUDA)
    post_ns: int  # outputs to the host and decoding
    batch: int = 1
    decode_ns: int = 0  # of the image, before the frame waits in the mailbox

    @property
    def mailbox_ns(self) -> int:
        return self.started_ns - self.received_ns - self.decode_ns

    @property
    def end_to_end_ns(self) -> int:
        return self.finished_ns - self.received_ns


class Result(NamedTuple):
    """The decoded outputs of one DNN for one frame."""

    dnn: str
    frame: Frame
    output: Any
    timing: Timing


@dataclass(frozen=True)
class Drop:
    """A frame that one DNN lost, and why. `message` names the cause in words."""

    dnn: str
    frame: Frame
    reason: DropReason
    message: str
