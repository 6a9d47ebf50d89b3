"""Every parameter of the package: its type, default, range and meaning, in one place.

The node declares its ROS parameters from these models, ``multi-dnn replay`` reads the same YAML through them, and
docs/parameters.md and ``config/multi_dnn.yaml`` are generated from them; a test fails if either is out of date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from multi_dnn_ros.common import extensions
from multi_dnn_ros.settings.roles import PRESETS

if TYPE_CHECKING:  # the names are known when the registries have been read
    DecoderName = str
    BackendName = str
else:
    DecoderName = Literal[("auto", *extensions.names(extensions.DECODERS))]
    BackendName = Literal[("auto", *extensions.names(extensions.BACKENDS))]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]

#: Marks a field that may change while the node is running (``json_schema_extra=RUNTIME``); all others are read-only
#: once the node is configured.
RUNTIME: JsonDict = {"runtime": True}

#: Queue depth of a camera's subscription where the parameter is 0 (measured, docs/cameras.md). Reliable: images that
#: waited for one that was sent again arrive together.
BEST_EFFORT_DEPTH, RELIABLE_DEPTH = 5, 10


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


class CameraConfig(_Section):
    """One camera topic (parameters ``camera.<name>.*``)."""

    topic: str = Field(
        "",
        description="Topic of the images. Empty: `<camera>/image_raw`, with `/compressed` appended for compressed "
        "images.",
    )
    transport: Literal["raw", "compressed"] = Field(
        "raw", description="Type of the topic: raw is sensor_msgs/Image, compressed is sensor_msgs/CompressedImage."
    )
    qos: Literal["auto", "sensor_data", "system_default", "default", "reliable"] = Field(
        "auto",
        description="QoS profile of the subscription. auto: reliable if every publisher of the topic offers it, "
        "otherwise best effort.",
    )
    depth: int = Field(
        0,
        ge=0,
        le=100,
        description=f"Queue depth of the subscription. 0: {BEST_EFFORT_DEPTH} for best effort and {RELIABLE_DEPTH} "
        "for reliable (measured, docs/cameras.md). A longer queue loses fewer images and can make them older.",
    )
    max_pixels: int = Field(
        33_177_600, ge=1, le=268_435_456, description="Images with more pixels than this are rejected."
    )
    rate_hz: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="Expected frame rate. If every camera has one, the node measures while configuring whether the "
        "DNNs fit the device at these rates. 0: unknown, no check.",
    )
    max_loss: float = Field(
        0.2,
        ge=0.0,
        le=1.0,
        description="Share of the images lost before they reach the node above which the camera's status is WARN.",
    )


class DnnConfig(_Section):
    """One DNN (parameters ``dnn.<name>.*``)."""

    role: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        max_length=64,
        description=f"What it is for: a label. {', '.join(PRESETS)} bring defaults: the model, the decoder of a model "
        "that does not know its own, the kind of results.",
        json_schema_extra={"allowed": f"lower-case letters, digits and _; with defaults: {', '.join(PRESETS)}"},
    )
    model: str = Field(
        min_length=1,
        description="`builtin:lane`, `builtin:object`, `builtin:pedestrian`, each also with `_small` (decomposed), "
        "`torchvision:<builder>`, or a .pt2, .onnx or (of `multi-dnn decompose`) .safetensors file.",
        json_schema_extra={"allowed": f"not empty: {', '.join(extensions.model_forms())}"},
    )
    weights: str = Field(
        "default",
        description="Weights of a torchvision builder: a .safetensors or .pth file, a name such as `COCO_V1`, or "
        "`random`. Every other model contains its weights and takes `default` only.",
    )
    num_classes: int = Field(
        0, ge=0, le=10_000, description="Number of classes of a torchvision builder. 0: the builder's default."
    )
    decoder: DecoderName = Field(
        "auto",
        description="How raw outputs become results. auto: the model's own, else the one that reads outputs "
        "of these shapes (the log says which), else that of the role.",
    )
    labels: list[str] = Field(
        default_factory=list,
        description="Class names in the order of their indices, one text file with one name per line, coco80, or "
        "coco91. Empty: the model's own.",
    )
    keep: list[str] = Field(default_factory=list, description="Classes to publish. Empty: all.")
    cameras: list[str] = Field(default_factory=list, description="Cameras whose images the DNN processes. Empty: all.")
    input_width: int = Field(0, ge=0, le=8192, description="Network input width in pixels. 0: the model's own.")
    input_height: int = Field(0, ge=0, le=8192, description="Network input height in pixels. 0: the model's own.")
    resize: Literal["auto", "stretch", "letterbox"] = Field(
        "auto",
        description="How an image is fitted to the network input. auto: the model's own; otherwise letterbox with "
        "decoders of YOLO, stretch with others.",
    )
    color: Literal["auto", "rgb", "bgr"] = Field(
        "auto",
        description="Channel order of the network input. auto: the model's own; otherwise bgr with decoders "
        "grid, yolox, nanodet and nanodet_plus, rgb with others.",
    )
    mean: list[float] = Field(
        default_factory=list,
        description="Mean per channel, subtracted from values scaled to 0..1. Empty: the model's own.",
    )
    std: list[float] = Field(
        default_factory=list,
        description="Standard deviation per channel, by which the difference is divided. Empty: the model's own.",
    )
    backend: BackendName = Field(
        "auto",
        description="How the jobs run. auto: onnxruntime on a CPU (torchscript with precision bf16, and for a DNN that "
        "cannot be exported), cuda_graph on a GPU. inductor compiles the jobs with TorchInductor, which takes minutes "
        "the first time (cached in ~/.cache/multi_dnn_ros/inductor), and captures them on a GPU.",
    )
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16", "int8"] = Field(
        "auto",
        description="Number format of the layers. auto: float32, with TF32 convolutions on a GPU (PyTorch's default). "
        "fp32: float32 without TF32. tf32: TF32 for matrix products too. A CPU takes auto, fp32, bf16 and, with "
        "backend onnxruntime and 8-bit dot products (VNNI), int8; a DNN that differs too much in int8 stays float32.",
    )
    calibration_images: str = Field(
        "",
        description="With precision int8: a folder of at least 8 images of the DNN's camera, on which the value ranges "
        "of its layers are measured when it is first configured. Empty: generated road images of this package.",
    )
    capture_preprocess: bool = Field(
        False,
        description="On a GPU with backend cuda_graph or inductor: capture preprocessing as a CUDA graph too, once "
        "for each image size, after its first frame. No effect otherwise.",
    )
    sms: int = Field(
        0,
        ge=0,
        le=1024,
        description="Number of SMs of the GPU that the DNN may use, by a CUDA green context (PyTorch 2.11 or newer). "
        "DNNs with the same number share the same SMs. 0: all.",
    )
    max_batch: int = Field(
        1,
        ge=1,
        le=16,
        description="Largest number of frames per inference, at most one per camera. 1: one frame per inference. Not "
        "allowed with capture_preprocess.",
    )
    batch_delay_ms: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="With max_batch: how long an idle DNN that has a frame waits for frames of its other cameras. 0: "
        "it starts at once.",
    )
    jobs: int = Field(
        4,
        ge=1,
        le=256,
        description="Number of jobs (runs of consecutive layers) that the DNN is cut into. With `blocking_ms` it is "
        "computed.",
    )
    score_threshold: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="Results with a lower score are not published. 0: the model's own threshold (built-in models, "
        "docs/models.md), otherwise 0.4.",
        json_schema_extra=RUNTIME,
    )
    iou_threshold: float = Field(
        0.5,
        ge=0.0,
        le=1.0,
        description="Intersection over union above which the lower-scored of two boxes of a class is discarded (NMS).",
        json_schema_extra=RUNTIME,
    )
    max_detections: int = Field(
        100, ge=1, le=10_000, description="Largest number of boxes or lane lines per frame.", json_schema_extra=RUNTIME
    )
    priority: int = Field(
        0,
        ge=-100,
        le=100,
        description="Higher values run first under policy priority. On a GPU it also sets the priority of the DNN's "
        "CUDA stream, under every policy.",
        json_schema_extra=RUNTIME,
    )
    deadline_ms: float = Field(
        0.0,
        ge=0.0,
        le=3_600_000.0,
        description="Deadline of a result, counted from the arrival of the image. 0: none.",
        json_schema_extra=RUNTIME,
    )
    max_age_ms: float = Field(
        0.0,
        ge=0.0,
        le=3_600_000.0,
        description="A frame that has waited longer before its inference starts is dropped. 0: never.",
        json_schema_extra=RUNTIME,
    )


class NodeConfig(_Section):
    """The whole node."""

    autostart: bool = Field(True, description="Configure and activate at start.")
    cameras: dict[Name, CameraConfig] = Field(min_length=1, description="Camera names.")
    dnns: dict[Name, DnnConfig] = Field(
        min_length=1, description="DNN names. They are part of the names of the output topics."
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Device that runs the DNNs. auto: the first GPU, or the CPU if there is none.",
        json_schema_extra={"allowed": "auto, cpu, cuda, cuda:<number>"},
    )
    workers: int = Field(
        0,
        ge=0,
        le=16,
        description="Worker threads. They run the jobs on a CPU and launch them on a GPU. 0: one per core, but not "
        "more than there are DNNs, on a CPU; one on a GPU.",
    )
    cpu_threads: int = Field(
        0, ge=0, le=256, description="Threads per CPU operation. 0: cores divided by workers; 1 on a GPU."
    )
    policy: Literal["fifo", "priority", "edf"] = Field(
        "fifo", description="Order of the job queue: fifo, priority, or edf (earliest deadline first)."
    )
    aging_ms: float = Field(
        50.0,
        gt=0.0,
        le=60_000.0,
        description="Under policy priority: waiting time that counts as much as one step of priority, so that no job "
        "starves.",
    )
    predictor: str = Field(
        "",
        description="predictor.json of `multi-dnn profile learn`. DNNs are then cut into jobs of equal predicted "
        "time. Layers that the predictor does not know are measured. Empty: none.",
    )
    blocking_ms: float = Field(
        0.0,
        ge=0.0,
        le=60_000.0,
        description="Longest time of a job while nothing else runs. Each DNN is cut into the smallest number of jobs "
        "that meets it, by predicted or measured layer times. 0: `dnn.<dnn>.jobs` decides.",
    )
    max_launched: int = Field(
        0,
        ge=0,
        le=64,
        description="On a GPU under policy priority or edf: largest number of launched, unfinished jobs that a more "
        "important frame could overtake. Each job is then a launch of its own. 0: no bound.",
    )
    max_failures: int = Field(
        5, ge=1, le=1000, description="Consecutive failures after which a DNN is disabled. It is tried again later."
    )
    isolation: Literal["process", "none"] = Field(
        "process",
        description="process: the DNNs run in an engine process, which is replaced when it crashes or hangs. none: "
        "they run in the node's process, for debuggers and profilers.",
    )
    standby: Literal["none", "warm", "hot"] = Field(
        "none",
        description="What replaces a lost engine process. none: a new process. warm: a process that has done its "
        "imports. hot: a second, configured engine, which needs the memory of one more.",
    )
    job_timeout_s: float = Field(
        5.0,
        ge=0.1,
        le=600.0,
        description="Longest time of one job (on a CPU also of a frame that runs as one network). An engine process "
        "that exceeds it is replaced.",
    )
    heartbeat_timeout_s: float = Field(
        2.0,
        ge=0.2,
        le=600.0,
        description="Longest time without a heartbeat of a serving engine process. One that exceeds it is replaced.",
    )
    fault_window_s: float = Field(
        60.0,
        ge=1.0,
        le=86_400.0,
        description="Two losses of the engine process within this time give each DNN that was computing a process of "
        "its own. A DNN that serves without a fault for this time returns to the common process.",
    )
    stop_timeout_s: float = Field(
        2.0, gt=0.0, le=60.0, description="Longest wait for unfinished jobs when the node is deactivated."
    )
    diagnostics_period_s: float = Field(1.0, ge=0.1, le=60.0, description="Period of the /diagnostics messages.")
    stale_after_s: float = Field(
        2.0, gt=0.0, le=3600.0, description="Time without an image after which a camera's status is STALE."
    )
