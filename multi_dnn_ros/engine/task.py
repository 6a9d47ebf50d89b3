"""What the engine runs (:class:`DnnTask`) and what it returns: results, drops and timings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from multi_dnn_ros.engine.frame import Frame

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from multi_dnn_ros.backends import Stage, Tensors
    from multi_dnn_ros.backends.captured_network import Network


class Gate(Protocol):
    """The point before each segment of a DNN's graphs on a GPU at which the DNN can be held back."""

    is_open: bool


@dataclass(frozen=True)
class DnnTask:
    """One DNN, as the engine runs it: on a CPU a chain of stages, on a GPU a network in one launch.

    preprocess: (H, W, 3) uint8 image on the device -> inputs of the network for one image. arrays: on a CPU, whether
    image, inputs and outputs are NumPy arrays instead of PyTorch's tensors.
    decode: outputs on the CPU and the image's (height, width) -> result; runs in the DNN's thread.
    cameras: the cameras that the DNN serves; one mailbox each.
    stages: on a CPU; each takes the carried tensors of its predecessor and returns those of its successor; one job per
    stage.
    single_launch: on a CPU, by batch size, all stages as one call. Used when no other job has to run in between.
    batches: on a CPU, by batch size (2 or more), stages for that many images, concatenated along the first dimension of
    every input and output. With it, waiting frames of several cameras share one inference.
    networks: on a GPU, by batch size (1 and perhaps more), the whole network.
    gate: on a GPU, where the networks can be held back; None: nowhere.
    priority: higher runs first under the priority policy.
    deadline_ns: from arrival, for EDF; None: no deadline.
    max_age_ns: frames that waited longer are dropped; None: never.
    sms: number of SMs of the GPU that the DNN runs on; its networks must have been prepared for that share. 0: all.
    specialize: called once per image (height, width), while nothing is launched, to optimize preprocessing for that
    size. `preprocess` may then return the memory that the network reads. None: it does not.
    from_host: as `preprocess`, for an image on the host, which is read later; None for a size that was not specialized.
    batch_delay_ns: how long an idle DNN waits for frames of further cameras.
    min_size: (height, width) of the smallest image that `preprocess` takes; smaller ones raise.
    input_key: on a CPU, equal for DNNs whose `preprocess` returns the same inputs for every image; a frame is
    then preprocessed once for all of them. Their stages must not write to their inputs. None: not shared.
    remaining_ns: by job, on a GPU of the whole network, time from its start to the end of the last job, for EDF's
    slack; None: unknown.
    """

    name: str
    cameras: tuple[str, ...]
    preprocess: Callable[[Any], Tensors]
    stages: tuple[Stage, ...]
    decode: Callable[[Tensors, tuple[int, int]], Any]
    priority: int = 0
    deadline_ns: int | None = None
    max_age_ns: int | None = None
    sms: int = 0
    specialize: Callable[[tuple[int, int]], None] | None = None
    from_host: Callable[[npt.NDArray[np.uint8]], Tensors | None] | None = None
    batches: Mapping[int, tuple[Stage, ...]] = field(default_factory=dict, hash=False)
    batch_delay_ns: int = 0
    remaining_ns: tuple[int, ...] | None = None
    single_launch: Mapping[int, Stage] = field(default_factory=dict, hash=False)
    networks: Mapping[int, Network] = field(default_factory=dict, hash=False)
    gate: Gate | None = field(default=None, hash=False)
    min_size: tuple[int, int] = (1, 1)
    input_key: Hashable = None
    arrays: bool = False

    @cached_property
    def max_batch(self) -> int:
        """Maximum number of frames per inference; each is of a different camera."""
        return min(max((*self.batches, *self.networks), default=1), len(self.cameras))

    @property
    def jobs(self) -> int:
        """Number of jobs of one inference: of stages, or of segments of the network's graph."""
        return self.networks[1].segments if self.networks else len(self.stages)

    def enlarge_to_min(self, size: tuple[int, int]) -> tuple[int, int]:
        """The (height, width) of an image, enlarged to `min_size` where it is smaller."""
        return max(size[0], self.min_size[0]), max(size[1], self.min_size[1])

    def stages_for(self, images: int) -> tuple[int, tuple[Stage, ...]]:
        """On a CPU: the smallest batch size that holds `images` images, and its stages."""
        if images == 1:
            return 1, self.stages
        size = min(size for size in self.batches if size >= images)
        return size, self.batches[size]

    def network_for(self, images: int) -> Network:
        """On a GPU: the network of the smallest batch size that holds `images` images."""
        return self.networks[1 if images == 1 else min(size for size in self.networks if size >= images)]

    def result(self, image: Any) -> Any:
        """What the DNN finds in one image, (H, W, 3) uint8 on its device, from preprocessing to decoding."""
        from multi_dnn_ros.backends import run_stages
        from multi_dnn_ros.backends.host import inference

        with inference():
            inputs = self.preprocess(image)
            if self.networks:
                outputs = self.networks[1].unpack(self.networks[1].launch(inputs).cpu())[0]
            else:
                outputs = run_stages(self.stages, inputs)
            return self.decode(outputs, (image.shape[0], image.shape[1]))


class DropEffect(Enum):
    """What a dropped frame means to the user, apart from its reason."""

    FAILURE = "failure"  # the DNN or a callback raised: level ERROR in /diagnostics, a log line
    LOSS = "loss"  # level WARN in /diagnostics
    EXPECTED = "expected"  # belongs to normal operation: does not change the level by itself
    REFUSED = "refused"  # as EXPECTED, and not counted as missing: a parameter keeps the frame from the DNN


class DropReason(str, Enum):
    """Why a frame has no result. Every offered frame ends as a result or with one of these reasons."""

    effect: DropEffect

    def __new__(cls, value: str, effect: DropEffect) -> DropReason:
        """The value is the name in /diagnostics and in reports."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.effect = effect
        return reason

    # Replaced by a newer frame of the camera before the DNN started on it: always if a DNN is slower than its camera.
    OVERWRITTEN = "overwritten", DropEffect.EXPECTED
    TOO_OLD = "too_old", DropEffect.LOSS  # waited longer than the maximum age
    BAD_IMAGE = "bad_image", DropEffect.LOSS  # the image could not be decoded
    DNN_ERROR = "dnn_error", DropEffect.FAILURE  # preprocessing or a layer raised
    BAD_OUTPUT = "bad_output", DropEffect.FAILURE  # the raw outputs could not be decoded (NaN, wrong shape)
    PUBLISH_ERROR = "publish_error", DropEffect.FAILURE  # the on_result callback raised
    # The DNN is disabled: too many failures in a row, its engine process was lost, or its thread ended.
    DISABLED = "disabled", DropEffect.LOSS
    SWITCHED_OFF = "switched_off", DropEffect.REFUSED  # the DNN is switched off by its parameter enable
    RATE_LIMITED = "rate_limited", DropEffect.REFUSED  # arrived sooner after another image than max_rate_hz allows
    SHUTDOWN = "shutdown", DropEffect.EXPECTED  # the engine stopped before the frame was finished
    # No engine process served the DNN, or it ended while the frame was in progress.
    ENGINE_LOST = "engine_lost", DropEffect.LOSS


class Timing(NamedTuple):
    """Where the time of one frame was spent, in nanoseconds of the engine's clock.

    Frames that share an inference share pre_ns, queue_ns and compute_ns. batch: number of frames of the inference.
    """

    received_ns: int
    started_ns: int  # taken from the mailbox
    finished_ns: int  # result decoded
    pre_ns: int  # upload, preprocessing (host time)
    queue_ns: int  # sum over the jobs: waiting in the shared queue
    compute_ns: int  # sum over the jobs: running (GPU time on CUDA)
    post_ns: int  # outputs to the host and decoding
    batch: int = 1
    decode_ns: int = 0  # decoding the image, before the mailbox

    @property
    def mailbox_ns(self) -> int:
        return self.started_ns - self.received_ns - self.decode_ns

    @property
    def arrival_to_result_ns(self) -> int:
        return self.finished_ns - self.received_ns


class Result(NamedTuple):
    """The decoded outputs of one DNN for one frame."""

    dnn: str
    frame: Frame
    output: Any
    timing: Timing


@dataclass(frozen=True)
class Drop:
    """A frame that one DNN dropped. `message` states the cause."""

    dnn: str
    frame: Frame
    reason: DropReason
    message: str
