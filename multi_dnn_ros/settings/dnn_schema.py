"""The schema of the parameters of a DNN and of its outputs, and the marks of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from multi_dnn_ros.common import extensions
from multi_dnn_ros.settings.forms import DEVICE, DEVICE_FORMS, PRECISIONS, PRESETS, model_forms

if TYPE_CHECKING:  # the names are read at run time, most of them from the registries
    DecoderName = str
    BackendName = str
    PrecisionName = str
else:
    DecoderName = Literal[("auto", *extensions.names(extensions.DECODERS))]
    BackendName = Literal[("auto", *extensions.names(extensions.BACKENDS))]
    PrecisionName = Literal[PRECISIONS]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
NAME_RULE = "all different: lower-case letters, digits and _, starting with a letter, at most 64 characters"
#: Marks of a parameter for ``json_schema_extra``: when it can change (:class:`.flat_parameters.ParameterField`; without
#: a mark a parameter of a DNN changes by a swap, others only while the node is unconfigured), a file or folder that
#: must exist, and what is allowed, where the type does not say it.
RUNTIME: JsonDict = {"change": "runtime"}
FIXED: JsonDict = {"change": "unconfigured"}
NAMES: JsonDict = {"change": "start", "allowed": f"at least one name, {NAME_RULE}"}
FOLDER: JsonDict = {"folder": True}
_MODEL_FILE: JsonDict = {"file_suffixes": [".pt2", ".onnx", ".safetensors"]}
#: Syntax of an execution provider; :func:`multi_dnn_ros.backends.onnx_providers.parse` reads all of them.
_PROVIDER = r"^(tensorrt|cuda|openvino(:(cpu|gpu|npu)(\.[0-9]{1,2})?)?|cpu)$"
_ROLE_RULE = f"lower-case letters, digits and _, starting with a letter; with defaults: {', '.join(PRESETS)}"
_CROP_RULE = (
    "an empty list, or 4 numbers inside the image: x, y, width, height, with width and height above 0; fractions with "
    "x + width and y + height at most 1, or whole pixels"
)


class Section(BaseModel):
    """Base of the sections."""

    model_config = ConfigDict(
        extra="forbid", allow_inf_nan=False, str_strip_whitespace=True, use_attribute_docstrings=True
    )


def _checked_crop(values: list[float]) -> list[float]:
    """`values`, if they are allowed for `crop`; otherwise ValueError."""
    if values:
        x, y, width, height = values  # ValueError for another number
        inside = max(x + width, y + height) <= 1 + 1e-6  # 0.7 + 0.3 may exceed 1
        allowed = inside if max(values) <= 1 else all(value.is_integer() for value in values)
        if min(x, y) < 0 or min(width, height) <= 0 or not allowed:
            raise ValueError(_CROP_RULE)
    return values


class OutputConfig(Section):
    """One of several results of a DNN (parameters ``dnn.<dnn>.output.<output>.*``)."""

    decoder: DecoderName = Field("auto")
    """Converts the raw outputs into this result. auto: the decoder for raw outputs of these shapes."""
    raw_outputs: list[str] = Field(default_factory=list)
    """Raw outputs of the network that the decoder reads, in its order: their names in the .onnx file or their
    numbers, from "0" (numbers in quotes). Empty: all.
    """
    labels: list[str] = Field(default_factory=list)
    """As `dnn.<dnn>.labels`, for this result. Empty: those of the decoder for lane lines and drivable area, those of
    the DNN for other results.
    """
    keep: list[str] = Field(default_factory=list)
    """Names of the classes in this result; others are discarded. Empty: all."""
    score_threshold: float = Field(0.0, ge=0.0, le=1.0, json_schema_extra=RUNTIME)
    """As `dnn.<dnn>.score_threshold`, for this result."""
    iou_threshold: float = Field(0.5, ge=0.0, le=1.0, json_schema_extra=RUNTIME)
    """As `dnn.<dnn>.iou_threshold`, for this result."""
    max_detections: int = Field(100, ge=1, le=10000, json_schema_extra=RUNTIME)
    """As `dnn.<dnn>.max_detections`, for this result."""


class DnnConfig(Section):
    """One DNN (parameters ``dnn.<dnn>.*``)."""

    role: Name = Field(json_schema_extra={**FIXED, "allowed": _ROLE_RULE})
    """Purpose of the DNN: any label. The roles lane, object, pedestrian have defaults for the model, the result kind,
    and the decoder of a model that does not define one.
    """
    model: str = Field(
        min_length=1, json_schema_extra={**_MODEL_FILE, "allowed": f"not empty: {', '.join(model_forms())}"}
    )
    """Model to run. `builtin:lane`, `builtin:object` or `builtin:pedestrian`, each also with `_small` appended
    (decomposed); `torchvision:<builder>`; or a .pt2, .onnx or .safetensors file. A .safetensors file is written
    by `multi-dnn decompose`, `retrain` or `fleet`.
    """
    weights: str = Field("default", json_schema_extra={"file_suffixes": [".safetensors", ".pth", ".pt"]})
    """Weights of a torchvision model: a .safetensors or .pth file, the name of torchvision weights such as
    `COCO_V1`, or `random`. Other models contain their weights and accept only `default`.
    """
    num_classes: int = Field(0, ge=0, le=10000)
    """Number of classes of a torchvision model. 0: the default of its builder."""
    decoder: DecoderName = Field("auto")
    """Converts the raw outputs into results. auto: the decoder that the model defines, otherwise the one for outputs of
    these shapes, which is logged, otherwise that of the role.
    """
    labels: list[str] = Field(default_factory=list)
    """Class names in the order of their indices, the path of a text file with one name per line, coco80, or coco91.
    Empty: the names that the model defines.
    """
    keep: list[str] = Field(default_factory=list)
    """Names of the classes to publish; other results are discarded. Empty: all."""
    cameras: list[str] = Field(default_factory=list, json_schema_extra=FIXED)
    """Cameras whose images the DNN processes. Empty: all."""
    input_width: int = Field(0, ge=0, le=8192)
    """Width of the network input in pixels. 0: the width that the model defines."""
    input_height: int = Field(0, ge=0, le=8192)
    """Height of the network input in pixels. 0: the height that the model defines."""
    resize: Literal["auto", "stretch", "letterbox"] = Field("auto")
    """How images are resized to the network input. stretch: the aspect ratio changes. letterbox: it is kept, and the
    borders are padded. auto: as the model defines, otherwise letterbox with YOLO decoders and stretch with others.
    """
    color: Literal["auto", "rgb", "bgr"] = Field("auto")
    """Channel order of the network input. auto: as the model defines, otherwise bgr with decoders grid, yolox,
    nanodet, nanodet_plus, lstr and clrnet, and rgb with other decoders.
    """
    mean: list[float] = Field(default_factory=list)
    """Mean of each channel, subtracted from the pixel values, which are scaled to 0..1. Empty: as the model defines."""
    std: list[float] = Field(default_factory=list)
    """Standard deviation of each channel, by which the values are then divided. Empty: as the model defines."""
    backend: BackendName = Field("auto")
    """How the jobs run (docs/models.md). auto: onnxruntime on a CPU; on a GPU inductor if Triton and a C compiler are
    installed, otherwise cuda_graph. With inductor the first compilation of a DNN takes 10 s to minutes.
    """
    precision: PrecisionName = Field("auto")
    """Number format of the layers. auto: float32, on a GPU with TF32 convolutions. fp32: float32 without it. tf32: TF32
    also for matrix products. fp16: float16, on a GPU. A CPU supports auto, fp32, bf16 and, with backend onnxruntime and
    8-bit dot products (VNNI), int8; a DNN whose int8 outputs differ too much stays in float32.
    """
    calibration_images: str = Field("", json_schema_extra=FOLDER)
    """Folder with at least 8 images of the DNN's cameras, in which precision int8 measures the value ranges of the
    layers. Empty: generated road images of this package.
    """
    sms: int = Field(0, ge=0, le=1024)
    """Number of SMs of the GPU that the DNN may use, limited by a CUDA green context (needs PyTorch 2.11
    or newer). DNNs with the same number share the same SMs. 0: all.
    """
    max_batch: int = Field(1, ge=1, le=16)
    """Maximum number of frames per inference, at most one per camera."""
    batch_delay_ms: float = Field(0.0, ge=0.0, le=1000.0)
    """If max_batch is above 1: maximum time in ms that an idle DNN with a frame waits for frames of its other
    cameras. 0: it starts immediately.
    """
    jobs: int = Field(4, ge=1, le=256)
    """Number of jobs (runs of consecutive layers) into which the DNN is cut. Ignored if blocking_ms is set."""
    score_threshold: float = Field(0.0, ge=0.0, le=1.0, json_schema_extra=RUNTIME)
    """Minimum score of a published result. 0: the threshold that the model defines, otherwise 0.4; decoders drivable
    and yolop_drivable: 0.5; segmentation: no threshold, or 0.5 with one class.
    """
    iou_threshold: float = Field(0.5, ge=0.0, le=1.0, json_schema_extra=RUNTIME)
    """Intersection over union of two boxes of a class above which the one with the lower score is discarded (NMS)."""
    max_detections: int = Field(100, ge=1, le=10000, json_schema_extra=RUNTIME)
    """Maximum number of boxes or lane lines per frame."""
    priority: int = Field(0, ge=-100, le=100, json_schema_extra=RUNTIME)
    """Priority of the DNN; higher values run first under policy priority. On a GPU it also determines the priority
    of the DNN's CUDA stream, under every policy.
    """
    deadline_ms: float = Field(0.0, ge=0.0, le=3600000.0, json_schema_extra=RUNTIME)
    """Deadline of a result in ms after the arrival of its image. Policy edf orders jobs by it, and late results are
    counted as deadline misses. 0: none.
    """
    max_age_ms: float = Field(0.0, ge=0.0, le=3600000.0, json_schema_extra=RUNTIME)
    """Maximum time in ms that a frame may wait for its inference; older ones are dropped as too_old. 0: none."""
    branches: int = Field(1, ge=1, le=8)
    """Number of streams on which independent branches of the DNN run at the same time, on a GPU with backend
    cuda_graph or inductor (`multi-dnn benchmark paper --branches` measures it).
    """
    crop: Annotated[list[float], AfterValidator(_checked_crop)] = Field(
        default_factory=list, json_schema_extra={"allowed": _CROP_RULE}
    )
    """Part of the image that the DNN processes: x, y, width and height, as fractions of the image if all are at most
    1, otherwise in pixels. Results are in pixels of the whole image. Empty: the whole image.
    """
    outputs: dict[Name, OutputConfig] = Field(
        default_factory=dict, json_schema_extra={**NAMES, "allowed": f"names, {NAME_RULE}"}
    )
    """Names of several results of one inference, each with parameters and topics of its own. Empty: one result."""
    enable: bool = Field(True, json_schema_extra=RUNTIME)
    """Whether the DNN processes images; others count as switched_off. The service `~/<dnn>/enable` sets it, too."""
    max_rate_hz: float = Field(0.0, ge=0.0, le=1000.0, json_schema_extra=RUNTIME)
    """Maximum number of frames per second and camera that the DNN processes, by their time of arrival. All other
    images count as rate_limited. 0: no limit.
    """
    track: bool = Field(False, json_schema_extra=FIXED)
    """Whether to track boxes: an object has the same `id` in all frames of a camera (ByteTrack, docs/results.md)."""
    device: str = Field("auto", pattern=DEVICE, json_schema_extra={**FIXED, "allowed": DEVICE_FORMS})
    """Device of the DNN (docs/devices.md). auto: that of the node's parameter `device`."""
    providers: list[Annotated[str, Field(pattern=_PROVIDER)]] = Field(
        default_factory=list,
        json_schema_extra={"allowed": "tensorrt, cuda, openvino, openvino:<cpu, gpu, gpu.<number>, npu>, cpu"},
    )
    """Execution providers that backend onnxruntime tries, in this order (docs/devices.md). On a GPU: tensorrt, cuda. On
    a CPU: openvino, cpu; openvino:gpu and openvino:npu compute on an integrated GPU or an NPU. Empty: those installed
    for the device, in the order tensorrt, cuda, openvino, cpu; with backend auto on a CPU only cpu.
    """

    # Not a parameter of the node.
    capture_preprocess: bool = Field(True, exclude=True)

    def limited_hz(self, camera_hz: float) -> float:
        """Images per second that the DNN gets from a camera with this rate, limited by `max_rate_hz`."""
        return min(camera_hz, self.max_rate_hz) if self.max_rate_hz else camera_hz
