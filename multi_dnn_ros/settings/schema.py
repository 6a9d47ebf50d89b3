"""The schema: type, default, range and description of every parameter.

The node declares its ROS parameters from these models, and the offline commands validate parameter files with them.
docs/parameters.md and ``config/multi_dnn.yaml`` are generated from them by
``python -m multi_dnn_ros.settings.parameter_table``; a test fails if they are out of date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict

from multi_dnn_ros.common import extensions
from multi_dnn_ros.settings.image_parts import CROP_RULE, TILES, TILES_RULE, checked_crop
from multi_dnn_ros.settings.roles import PRESETS

if TYPE_CHECKING:  # the names are read from the registries at run time
    DecoderName = str
    BackendName = str
else:
    DecoderName = Literal[("auto", *extensions.names(extensions.DECODERS))]
    BackendName = Literal[("auto", "measured", *extensions.names(extensions.BACKENDS))]

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]

#: Syntax of a device; :func:`multi_dnn_ros.planning.batch_units.parse_unit` reads all of them but auto.
_DEVICE = r"^(auto|cpu(:[1-9][0-9]{0,3})?|cuda(:[0-9]{1,3})?)$"
#: Syntax of an execution provider; :func:`multi_dnn_ros.backends.onnx_providers.parse` reads all of them.
_PROVIDER = r"^(tensorrt|cuda|openvino(:(cpu|gpu|npu)(\.[0-9]{1,2})?)?|cpu)$"
_DEVICE_FORMS = "auto, cpu, cpu:<threads>, cuda, cuda:<number>"


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _check_devices(names: list[str]) -> list[str]:
    same = ["cuda:0" if name == "cuda" else name for name in names]
    if len(set(same)) < len(same) or ("auto" in same and len(same) > 1):
        raise ValueError("a device is named twice, or auto together with others")
    return names


#: One device, or a list of different ones; a single string is a list of one.
DeviceList = Annotated[
    list[Annotated[str, Field(pattern=_DEVICE)]], BeforeValidator(_as_list), AfterValidator(_check_devices)
]

#: Marks a runtime parameter, which may change at any time (``json_schema_extra=RUNTIME``). All others are read-only
#: while the node is configured.
RUNTIME: JsonDict = {"runtime": True}

#: Queue depth of a camera's subscription if the parameter is 0 (measured, docs/cameras.md). Reliable subscriptions need
#: a longer queue: images that were waiting for a resent one arrive together.
BEST_EFFORT_DEPTH, RELIABLE_DEPTH = 5, 10


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


class CameraConfig(_Section):
    """One camera (parameters ``camera.<camera>.*``)."""

    topic: str = Field(
        "",
        description="Topic of the images. Empty: `<camera>/image_raw`, or `<camera>/image_raw/compressed` if "
        "transport is compressed.",
    )
    transport: Literal["raw", "compressed"] = Field(
        "raw", description="Message type of the topic. raw: sensor_msgs/Image. compressed: sensor_msgs/CompressedImage."
    )
    qos: Literal["auto", "sensor_data", "system_default", "default", "reliable"] = Field(
        "auto",
        description="QoS profile of the subscription. auto: reliable if every publisher of the topic offers it, "
        "otherwise best effort, which is compatible with every publisher. sensor_data: best effort. default, "
        "reliable: reliable. system_default: the default of the middleware.",
    )
    depth: int = Field(
        0,
        ge=0,
        le=100,
        description=f"Queue depth of the subscription, in images. 0: {BEST_EFFORT_DEPTH} for best effort and "
        f"{RELIABLE_DEPTH} for reliable (measured, docs/cameras.md). With a longer queue fewer images are lost, but "
        "they may be older when they are processed.",
    )
    max_pixels: int = Field(
        33_177_600,
        ge=1,
        le=268_435_456,
        description="Maximum number of pixels of an image. Larger images are dropped as bad_image. The default is "
        "7680 x 4320 (8K UHD).",
    )
    rate_hz: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="Expected frame rate in Hz. If it is set for every camera, configuring measures whether the DNNs "
        "fit the device at these rates. Lost images are estimated with it. 0: unknown; the fit is not measured, and "
        "lost images are estimated with a rate learned from the stamps.",
    )
    max_loss: float = Field(
        0.2,
        ge=0.0,
        le=1.0,
        description="Maximum share of images of the last 10 s that may be lost before they reach the node. Above it, "
        "the status of the camera in /diagnostics is WARN.",
    )

    # Results on the ground, in metres (docs/lanes_in_metres.md)
    info_topic: str = Field(
        "",
        description="Topic of the camera's calibration, sensor_msgs/CameraInfo. Empty: `camera_info` beside the topic "
        "of the images.",
    )
    rectified: bool = Field(
        False,
        description="Whether the images are rectified (image_proc): P and R of the CameraInfo are used instead of K "
        "and D.",
    )
    height_m: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="Height in m of the camera above the ground. 0: unknown; the pose of the camera comes from TF, and "
        "`x_m` to `yaw_rad` have no effect.",
    )
    x_m: float = Field(
        0.0, ge=-100.0, le=100.0, description="Position of the camera in `vehicle_frame` in m, forward positive."
    )
    y_m: float = Field(
        0.0, ge=-100.0, le=100.0, description="Position of the camera in `vehicle_frame` in m, to the left positive."
    )
    roll_rad: float = Field(
        0.0, ge=-3.2, le=3.2, description="Roll of the camera in rad, clockwise seen from behind positive (REP 103)."
    )
    pitch_rad: float = Field(0.0, ge=-1.6, le=1.6, description="Pitch of the camera in rad, down positive (REP 103).")
    yaw_rad: float = Field(0.0, ge=-3.2, le=3.2, description="Yaw of the camera in rad, to the left positive.")
    ground_range_m: float = Field(
        50.0,
        gt=0.0,
        le=1000.0,
        description="Maximum horizontal distance in m from the camera of a point on the ground. Points further away "
        "are left out, because their error grows with the square of the distance.",
    )


class OutputConfig(_Section):
    """One of several results of a DNN (parameters ``dnn.<dnn>.output.<output>.*``)."""

    decoder: DecoderName = Field(
        "auto",
        description="Converts the raw outputs into this result. auto: the decoder for raw outputs of these shapes.",
    )
    raw_outputs: list[str] = Field(
        default_factory=list,
        description="Raw outputs of the network that the decoder reads, in its order: their names in the .onnx file "
        'or their numbers, from "0" (numbers in quotes). Empty: all.',
    )
    labels: list[str] = Field(
        default_factory=list,
        description="As `dnn.<dnn>.labels`, for this result. Empty: those of the decoder, if it has some (lane, "
        "drivable area), otherwise those of the DNN.",
    )
    keep: list[str] = Field(
        default_factory=list, description="Names of the classes in this result; others are discarded. Empty: all."
    )
    score_threshold: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="As `dnn.<dnn>.score_threshold`, for this result.",
        json_schema_extra=RUNTIME,
    )
    iou_threshold: float = Field(
        0.5, ge=0.0, le=1.0, description="As `dnn.<dnn>.iou_threshold`, for this result.", json_schema_extra=RUNTIME
    )
    max_detections: int = Field(
        100,
        ge=1,
        le=10_000,
        description="As `dnn.<dnn>.max_detections`, for this result.",
        json_schema_extra=RUNTIME,
    )


class DnnConfig(_Section):
    """One DNN (parameters ``dnn.<dnn>.*``)."""

    role: str = Field(
        pattern=r"^[a-z][a-z0-9_]*$",
        max_length=64,
        description=f"Purpose of the DNN: any label. The roles {', '.join(PRESETS)} have defaults for the model, the "
        "result kind, and the decoder of a model that does not define one.",
        json_schema_extra={
            "allowed": f"lower-case letters, digits and _, starting with a letter; with defaults: {', '.join(PRESETS)}"
        },
    )
    model: str = Field(
        min_length=1,
        description="Model to run. `builtin:lane`, `builtin:object` or `builtin:pedestrian`, each also with `_small` "
        "appended (decomposed); `torchvision:<builder>`; or a .pt2, .onnx or .safetensors file. The last one is "
        "written by `multi-dnn decompose`.",
        json_schema_extra={"allowed": f"not empty: {', '.join(extensions.model_forms())}"},
    )
    weights: str = Field(
        "default",
        description="Weights of a torchvision model: a .safetensors or .pth file, the name of torchvision weights "
        "such as `COCO_V1`, or `random`. Other models contain their weights and accept only `default`.",
    )
    num_classes: int = Field(
        0, ge=0, le=10_000, description="Number of classes of a torchvision model. 0: the default of its builder."
    )
    decoder: DecoderName = Field(
        "auto",
        description="Converts the raw outputs of the DNN into results. auto: the decoder that the model defines "
        "(built-in and torchvision models do), otherwise the one for outputs of these shapes, which is logged, "
        "otherwise that of the role.",
    )
    labels: list[str] = Field(
        default_factory=list,
        description="Class names in the order of their indices, the path of a text file with one name per line, "
        "coco80, or coco91. Empty: the names that the model defines.",
    )
    keep: list[str] = Field(
        default_factory=list, description="Names of the classes to publish; other results are discarded. Empty: all."
    )
    cameras: list[str] = Field(default_factory=list, description="Cameras whose images the DNN processes. Empty: all.")
    input_width: int = Field(
        0, ge=0, le=8192, description="Width of the network input in pixels. 0: the width that the model defines."
    )
    input_height: int = Field(
        0, ge=0, le=8192, description="Height of the network input in pixels. 0: the height that the model defines."
    )
    resize: Literal["auto", "stretch", "letterbox"] = Field(
        "auto",
        description="How images are resized to the network input. stretch: the aspect ratio changes. letterbox: it is "
        "kept, and the borders are padded. auto: as the model defines, otherwise letterbox with decoders of YOLO "
        "and stretch with other decoders.",
    )
    color: Literal["auto", "rgb", "bgr"] = Field(
        "auto",
        description="Channel order of the network input. auto: as the model defines, otherwise bgr with decoders "
        "grid, yolox, nanodet and nanodet_plus, and rgb with other decoders.",
    )
    mean: list[float] = Field(
        default_factory=list,
        description="Mean of each channel, subtracted from the pixel values, which are scaled to 0..1. Empty: as the "
        "model defines.",
    )
    std: list[float] = Field(
        default_factory=list,
        description="Standard deviation of each channel; the values are divided by it after subtracting the mean. "
        "Empty: as the model defines.",
    )
    backend: BackendName = Field(
        "auto",
        description="How the jobs run. auto: cuda_graph on a GPU; onnxruntime on a CPU, or torchscript with precision "
        "bf16 and for DNNs that cannot be exported. measured: the fastest of those that work here, measured when the "
        "DNN is first configured and then cached (docs/providers.md). inductor compiles the jobs with TorchInductor "
        "and captures them "
        "on a GPU; the first compilation takes minutes and is cached in ~/.cache/multi_dnn_ros/inductor.",
    )
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16", "int8"] = Field(
        "auto",
        description="Number format of the layers. auto: float32, on a GPU with TF32 convolutions (PyTorch's default). "
        "fp32: float32 without TF32. tf32: TF32 also for matrix products. A CPU supports auto, fp32, bf16 and, with "
        "backend onnxruntime and 8-bit dot products (VNNI), int8. A DNN whose int8 outputs differ too much stays in "
        "float32.",
    )
    calibration_images: str = Field(
        "",
        description="Folder with at least 8 images of the DNN's cameras, used with precision int8 to measure the "
        "value ranges of the layers when the DNN is first configured. Empty: generated road images of this package.",
    )
    capture_preprocess: bool = Field(
        False,
        description="Whether to capture the preprocessing as a CUDA graph too, after the first frame of each image "
        "size. Effective on a GPU with backend cuda_graph or inductor.",
    )
    sms: int = Field(
        0,
        ge=0,
        le=1024,
        description="Number of SMs of the GPU that the DNN may use, limited by a CUDA green context (needs PyTorch "
        "2.11 or newer). DNNs with the same number share the same SMs. 0: all.",
    )
    max_batch: int = Field(
        1,
        ge=1,
        le=16,
        description="Maximum number of frames per inference, at most one per camera. Above 1, capture_preprocess is "
        "not allowed.",
    )
    batch_delay_ms: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="If max_batch is above 1: maximum time in ms that an idle DNN with a frame waits for frames of "
        "its other cameras. 0: it starts immediately.",
    )
    jobs: int = Field(
        4,
        ge=1,
        le=256,
        description="Number of jobs (runs of consecutive layers) into which the DNN is cut. Ignored if blocking_ms is "
        "set, from which the number is then computed.",
    )
    score_threshold: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="Minimum score of a published result. 0: the threshold that the model defines (built-in models, "
        "docs/models.md), otherwise 0.4.",
        json_schema_extra=RUNTIME,
    )
    iou_threshold: float = Field(
        0.5,
        ge=0.0,
        le=1.0,
        description="Intersection over union of two boxes of a class above which the one with the lower score is "
        "discarded (NMS).",
        json_schema_extra=RUNTIME,
    )
    max_detections: int = Field(
        100, ge=1, le=10_000, description="Maximum number of boxes or lane lines per frame.", json_schema_extra=RUNTIME
    )
    priority: int = Field(
        0,
        ge=-100,
        le=100,
        description="Priority of the DNN; higher values run first under policy priority. On a GPU it also determines "
        "the priority of the DNN's CUDA stream, under every policy.",
        json_schema_extra=RUNTIME,
    )
    deadline_ms: float = Field(
        0.0,
        ge=0.0,
        le=3_600_000.0,
        description="Deadline of a result in ms after the arrival of its image. Policy edf orders jobs by it, and "
        "late results are counted as deadline misses. 0: none.",
        json_schema_extra=RUNTIME,
    )
    max_age_ms: float = Field(
        0.0,
        ge=0.0,
        le=3_600_000.0,
        description="Maximum time in ms that a frame may wait for its inference to start; older frames are dropped as "
        "too_old. 0: no limit.",
        json_schema_extra=RUNTIME,
    )
    branches: int = Field(
        1,
        ge=0,
        le=8,
        description="Number of streams on which independent branches of the DNN run at the same time. Effective on a "
        "GPU with backend cuda_graph. 0: 1, 2, 4 and 8 are measured while configuring, and the fastest is cached in "
        "~/.cache/multi_dnn_ros/branches. Results are compared with those of one stream.",
    )
    merge_siblings: Literal["never", "measured", "always"] = Field(
        "never",
        description="Whether convolutions or linear layers of the DNN that read the same tensor with the same geometry "
        "become one. measured: compared while configuring, and merged where that is at least 2 % faster; the choice is "
        "cached in ~/.cache/multi_dnn_ros/siblings. Results are compared with those of the separate operations.",
    )
    crop: Annotated[list[float], AfterValidator(checked_crop)] = Field(
        default_factory=list,
        description="Part of the image that the DNN sees: x, y, width and height, as fractions of the image if all are "
        "at most 1, otherwise in pixels. Results are in pixels of the whole image. Empty: the whole image.",
        json_schema_extra={"allowed": CROP_RULE},
    )
    tiles: str = Field(
        "1x1",
        pattern=TILES,
        description="Columns and rows of overlapping tiles into which the image, or its crop, is divided. The tiles "
        "are one batch of the network; detections and masks of all tiles are merged.",
        json_schema_extra={"allowed": TILES_RULE},
    )
    tile_overlap: float = Field(
        0.1,
        ge=0.02,
        le=0.5,
        description="Share of a tile that its neighbour shows, too. Two boxes at a border are merged if they agree "
        "there, see docs/outputs.md.",
    )
    outputs: dict[Name, OutputConfig] = Field(
        default_factory=dict,
        description="Names of several results of one inference; each has its own parameters below "
        "`dnn.<dnn>.output.<output>` and its own topics. Empty: one result.",
    )
    check_images: str = Field(
        "",
        description="Folder of images of the DNN's cameras. When configuring, the boxes or lane lines that the DNN, as "
        "it is served, finds in at most 32 of them are compared with those of `check_against`. Empty: no comparison.",
    )
    check_against: str = Field(
        "",
        description="With check_images: model to compare with, such as the network from which this one was "
        "decomposed. Empty: of a built-in decomposed network the original, otherwise this model in float32.",
    )
    check_agreement: float = Field(
        0.9,
        ge=0.0,
        le=1.0,
        description="With check_images: minimum agreement, the F1 score of the results of one model against those of "
        "the other. Below it a DNN with another precision than float32 is prepared in float32, with a warning; if "
        "that is not enough either, configuring fails.",
    )
    enable: bool = Field(
        True,
        description="Whether the DNN processes images. A change takes effect between two frames; frames in progress "
        "are finished. Images that the DNN does not get count as switched_off. Also the service `~/<dnn>/enable`.",
        json_schema_extra=RUNTIME,
    )
    max_rate_hz: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="Maximum number of frames per second and camera that the DNN processes, by their time of arrival. "
        "Further images count as rate_limited. 0: no limit.",
        json_schema_extra=RUNTIME,
    )
    track: bool = Field(
        False,
        description="Whether to track the boxes of each camera: the same object has the same `id` in all frames "
        "(ByteTrack, docs/tracking.md).",
    )
    track_across_classes: bool = Field(
        False, description="If track is true: whether an object may change its class without losing its identity."
    )
    track_low_score: float = Field(
        0.1,
        ge=0.01,
        le=1.0,
        description="If track is true: boxes with a score between this and score_threshold are published if they "
        "continue a track.",
    )
    track_max_lost_s: float = Field(
        1.0,
        gt=0.0,
        le=60.0,
        description="If track is true: time in s, by the stamps of the images, for which an object keeps its identity "
        "without a box.",
    )

    # Devices
    device: DeviceList = Field(
        ["auto"],
        min_length=1,
        description="Device of the DNN: a name, or a list of several devices, which share its frames "
        "(docs/devices.md). auto: that of the node's parameter `device`. With `placement: auto` the node chooses one "
        "device of the list, and auto stands for all GPUs and the CPU if parameter `device` is auto, too.",
        json_schema_extra={"allowed": f"{_DEVICE_FORMS}, or a list of different devices without auto"},
    )

    # Execution providers
    providers: list[Annotated[str, Field(pattern=_PROVIDER)]] = Field(
        default_factory=list,
        description="Execution providers of ONNX Runtime that backend onnxruntime tries, in this order "
        "(docs/providers.md). On a GPU tensorrt, cuda; on a CPU openvino, cpu, where openvino:gpu or openvino:npu is a "
        "processor beside the CPU. Empty: those of the device that are installed, in the order tensorrt, cuda, "
        "openvino, cpu; with backend auto on a CPU only cpu.",
        json_schema_extra={"allowed": "tensorrt, cuda, openvino, openvino:<cpu, gpu, gpu.<number>, npu>, cpu"},
    )


class NodeConfig(_Section):
    """All parameters of the node."""

    autostart: bool = Field(True, description="Whether the node configures and activates itself when it starts.")
    cameras: dict[Name, CameraConfig] = Field(
        min_length=1, description="Names of the cameras. They are part of the names of the topics."
    )
    dnns: dict[Name, DnnConfig] = Field(
        min_length=1, description="Names of the DNNs. They are part of the names of the output topics."
    )
    device: str = Field(
        "auto",
        pattern=_DEVICE,
        description="Device that runs the DNNs without a `dnn.<dnn>.device` of their own. auto: the first GPU, or the "
        "CPU if there is no GPU. `cpu:<threads>`: the CPU with at most this number of threads.",
        json_schema_extra={"allowed": _DEVICE_FORMS},
    )
    workers: int = Field(
        0,
        ge=0,
        le=16,
        description="Number of worker threads, which run the jobs on a CPU and launch them on a GPU. 0: on a CPU one "
        "per core, but at most one per DNN; on a GPU one.",
    )
    cpu_threads: int = Field(
        0,
        ge=0,
        le=256,
        description="Number of threads of an operation on the CPU. 0: on a CPU the number of cores divided by the "
        "number of workers; on a GPU 1.",
    )
    policy: Literal["fifo", "priority", "edf"] = Field(
        "fifo",
        description="Order of the job queue. fifo: first in, first out. priority: by `dnn.<dnn>.priority`. edf: "
        "earliest deadline first.",
    )
    aging_ms: float = Field(
        50.0,
        gt=0.0,
        le=60_000.0,
        description="Under policy priority: waiting time in ms that raises the priority of a job by one, so that no "
        "job starves.",
    )
    predictor: str = Field(
        "",
        description="Path of a predictor.json of `multi-dnn profile learn`. The DNNs are then cut into jobs of equal "
        "predicted time; layers that the predictor does not know are measured. Empty: none.",
    )
    blocking_ms: float = Field(
        0.0,
        ge=0.0,
        le=60_000.0,
        description="Maximum duration of a job in ms while nothing else runs. Each DNN is cut into the smallest "
        "number of jobs that meets it, by predicted or measured layer times. 0: cut into `dnn.<dnn>.jobs` jobs.",
    )
    max_launched: int = Field(
        0,
        ge=0,
        le=64,
        description="On a GPU under policy priority or edf: maximum number of launched, unfinished jobs of less "
        "important DNNs that a frame may have to wait for. Each job is then launched separately. 0: no limit.",
    )
    max_failures: int = Field(
        5,
        ge=1,
        le=1000,
        description="Number of consecutive failures after which a DNN is disabled. It is tried again after a pause.",
    )
    isolation: Literal["process", "none"] = Field(
        "process",
        description="Where the DNNs run. process: in an engine process, which is replaced when it crashes or hangs. "
        "none: in the process of the node, for debuggers and profilers.",
    )
    engine_nice: int = Field(
        5,
        ge=0,
        le=19,
        description="Added to the nice value of an engine process that runs DNNs on the CPU, so that the node receives "
        "and decodes images in time on a busy CPU. 0: the priority of the node. No effect with a GPU.",
    )
    standby: Literal["none", "warm", "hot"] = Field(
        "none",
        description="What replaces an engine process that was lost. none: a new process. warm: a process that has "
        "already imported its libraries. hot: a second, configured engine, which needs as much memory as the first.",
    )
    job_timeout_s: float = Field(
        5.0,
        ge=0.1,
        le=600.0,
        description="Maximum duration of one job in s; on a CPU also of a frame that runs as one network. An engine "
        "process that exceeds it is replaced.",
    )
    heartbeat_timeout_s: float = Field(
        2.0,
        ge=0.2,
        le=600.0,
        description="Maximum time in s without a heartbeat of an engine process that serves. One that exceeds it is "
        "replaced.",
    )
    fault_window_s: float = Field(
        60.0,
        ge=1.0,
        le=86_400.0,
        description="Time window in s. After two losses of the engine process within it, each DNN that was computing "
        "gets a process of its own. A DNN that runs without a fault for this time returns to the common process.",
    )
    stop_timeout_s: float = Field(
        2.0,
        gt=0.0,
        le=60.0,
        description="Maximum time in s to finish the frames in progress when the node is deactivated. Frames that are "
        "not finished by then are dropped as shutdown.",
    )
    diagnostics_period_s: float = Field(
        1.0, ge=0.1, le=60.0, description="Period in s of the messages on /diagnostics."
    )
    stale_after_s: float = Field(
        2.0,
        gt=0.0,
        le=3600.0,
        description="Time in s without an image after which the status of a camera is STALE.",
    )

    # Devices
    placement: Literal["fixed", "auto"] = Field(
        "fixed",
        description="How DNNs are assigned to devices. fixed: as `device` and `dnn.<dnn>.device` say. auto: one device "
        "per DNN, so that the largest utilization of a device is smallest and deadlines hold, from times measured when "
        "configuring (cached), or predicted with `predictor`; the log has the table. Cameras without `rate_hz` count "
        "as 30 Hz.",
    )
    reorder_ms: float = Field(
        100.0,
        ge=0.0,
        le=60_000.0,
        description="For a DNN with several devices: maximum time in ms that a result waits for the results of earlier "
        "frames on other devices. An earlier frame without a result by then is dropped as out_of_order.",
    )

    # Results on the ground, in metres (docs/lanes_in_metres.md)
    vehicle_frame: str = Field(
        "base_link",
        pattern=r"^[^/\s][^\s]*$",
        description="Frame of points on the ground: x forward, y left, z up (REP 105).",
        json_schema_extra={"allowed": "a frame id: not empty, without spaces and without / at the beginning"},
    )
    ground_z_m: float = Field(
        0.0,
        ge=-100.0,
        le=100.0,
        description="z of the ground in `vehicle_frame` in m. 0 if the frame's origin is on the ground (as that of "
        "base_footprint); negative if it is above, for example in the rear axle.",
    )
