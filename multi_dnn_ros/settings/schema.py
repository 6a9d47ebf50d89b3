"""Every parameter of the package: its type, default, range and meaning, in one place.

The node declares its ROS parameters from these models, ``multi-dnn replay`` reads the same YAML through them, and the
README's table is made from them. A test holds ``config/multi_dnn.yaml``, this file and the README together.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

Role = Literal["lane", "object", "pedestrian"]
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

    topic: str = Field("", description="Topic of the images; empty: `<camera>/image_raw`, and `/compressed` behind it.")
    transport: Literal["raw", "compressed"] = Field(
        "raw", description="sensor_msgs/Image or sensor_msgs/CompressedImage."
    )
    qos: Literal["auto", "sensor_data", "system_default", "default", "reliable"] = Field(
        "auto",
        description="QoS of the subscription, by name; auto: reliable where all publishers of the topic offer it, else "
        "best effort.",
    )
    depth: int = Field(
        0,
        ge=0,
        le=100,
        description="Queue depth of the subscription; every step may add age to the frames. "
        f"0: {BEST_EFFORT_DEPTH} for best effort, {RELIABLE_DEPTH} for reliable, which lost least (docs/cameras.md).",
    )
    max_pixels: int = Field(
        33_177_600, ge=1, le=268_435_456, description="Frames that claim more pixels than this are refused."
    )
    rate_hz: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="Frames a second to expect. With one for every camera, configuring measures whether the DNNs fit "
        "the device at these rates, and says what would help if not; 0: no check.",
    )
    max_loss: float = Field(
        0.2,
        ge=0.0,
        le=1.0,
        description="The camera's diagnostics say WARN when a larger share of its images is lost before the node.",
    )


class DnnConfig(_Section):
    """One DNN (parameters ``dnn.<name>.*``)."""

    role: Role = Field(description="What its results are: lane, object or pedestrian.")
    model: str = Field(
        min_length=1,
        description="`builtin:lane`, `builtin:object`, `builtin:pedestrian`, each also with `_small` (decomposed), "
        "`torchvision:<builder>`, or a .pt2, .onnx or (of `multi-dnn decompose`) .safetensors file.",
    )
    weights: str = Field(
        "default",
        description="For torchvision builders: a .safetensors or .pth file, a torchvision weights name such as "
        "`COCO_V1`, or `random`. `default`: what the model brings (built-in and file models).",
    )
    num_classes: int = Field(0, ge=0, le=10_000, description="Classes of a torchvision builder; 0: the builder's own.")
    decoder: Literal["auto", "torchvision", "yolo", "grid", "lane"] = Field(
        "auto", description="How raw outputs become results; auto: built-in and torchvision models know theirs."
    )
    labels: list[str] = Field(
        default_factory=list,
        description="Class names by index, or one file with a name a line; empty: the model's own.",
    )
    keep: list[str] = Field(default_factory=list, description="Publish these classes only; empty: all.")
    cameras: list[str] = Field(default_factory=list, description="Cameras it serves; empty: all.")
    input_width: int = Field(0, ge=0, le=8192, description="Network input width in pixels; 0: the model's own.")
    input_height: int = Field(0, ge=0, le=8192, description="Network input height in pixels; 0: the model's own.")
    resize: Literal["auto", "stretch", "letterbox"] = Field("auto", description="How an image is fitted to the input.")
    color: Literal["auto", "rgb", "bgr"] = Field("auto", description="Channel order that the network expects.")
    mean: list[float] = Field(
        default_factory=list, description="Per channel, subtracted from 0..1 values; empty: the model's."
    )
    std: list[float] = Field(
        default_factory=list, description="Per channel, divides after the mean; empty: the model's."
    )
    backend: Literal["auto", "eager", "torchscript", "onnxruntime", "cuda_graph", "inductor"] = Field(
        "auto",
        description="How its jobs run; auto: onnxruntime on a CPU (torchscript with precision bf16, and for a DNN that "
        "cannot be exported), cuda_graph on a GPU. inductor: compiled before, which takes minutes once (kept in "
        "~/.cache/multi_dnn_ros/inductor), and captured as cuda_graph on a GPU.",
    )
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16", "int8"] = Field(
        "auto",
        description="Numbers that its layers compute in; auto: float32, whose convolutions PyTorch rounds to TF32 on a "
        "GPU; fp32: without that; tf32: matrix products too. On a CPU: auto, fp32, bf16, and with backend onnxruntime "
        "int8 where the CPU has 8-bit dot products (VNNI); a DNN whose results differ too much in int8 stays float32.",
    )
    calibration_images: str = Field(
        "",
        description="With precision int8: a folder of 8 or more images of its camera, on which the ranges of its "
        "layers are measured when it is first configured; empty: generated road images of this package.",
    )
    capture_preprocess: bool = Field(
        False,
        description="With captured jobs, on a GPU: preprocessing is captured too, for each size of images after the "
        "first frame of it. No effect elsewhere.",
    )
    sms: int = Field(
        0,
        ge=0,
        le=1024,
        description="SMs of the GPU that its jobs may use, by a CUDA green context (PyTorch 2.11 and newer); DNNs with "
        "the same number share them. 0: all.",
    )
    max_batch: int = Field(
        1,
        ge=1,
        le=16,
        description="Most frames in one inference, at most one of each camera: those of several cameras that wait "
        "together share it. 1: every frame by itself. Not with capture_preprocess.",
    )
    batch_delay_ms: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="With max_batch: how long a DNN that could begin waits for frames of its other cameras; 0: it "
        "takes what is there.",
    )
    jobs: int = Field(
        4,
        ge=1,
        le=256,
        description="Jobs (runs of consecutive hidden layers) the DNN is cut into; see also `blocking_ms`.",
    )
    score_threshold: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="Results under this score are not published; 0: the model's own (built-in models, see "
        "docs/models.md), 0.4 where it has none.",
        json_schema_extra=RUNTIME,
    )
    iou_threshold: float = Field(
        0.5, ge=0.0, le=1.0, description="Boxes that overlap more than this are one (NMS).", json_schema_extra=RUNTIME
    )
    max_detections: int = Field(100, ge=1, le=10_000, description="Most boxes a frame.", json_schema_extra=RUNTIME)
    priority: int = Field(
        0,
        ge=-100,
        le=100,
        description="Higher goes first under the priority policy; on a GPU its CUDA streams do under every policy.",
        json_schema_extra=RUNTIME,
    )
    deadline_ms: float = Field(
        0.0, ge=0.0, le=3_600_000.0, description="End-to-end deadline from arrival; 0: none.", json_schema_extra=RUNTIME
    )
    max_age_ms: float = Field(
        0.0,
        ge=0.0,
        le=3_600_000.0,
        description="A frame that waited longer is dropped; 0: never.",
        json_schema_extra=RUNTIME,
    )


class NodeConfig(_Section):
    """The whole node."""

    autostart: bool = Field(True, description="Configure and activate by itself at start.")
    cameras: dict[Name, CameraConfig] = Field(min_length=1, description="Camera names.")
    dnns: dict[Name, DnnConfig] = Field(min_length=1, description="DNN names; they are part of the output topics.")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto: the first GPU, else the CPU.",
        json_schema_extra={"allowed": "auto, cpu, cuda, cuda:<number>"},
    )
    workers: int = Field(
        0,
        ge=0,
        le=16,
        description="Worker threads, which run the jobs, or launch them on the CUDA streams of their DNNs; 0: a core "
        "each on a CPU, one with a GPU.",
    )
    cpu_threads: int = Field(
        0, ge=0, le=256, description="Threads inside one CPU operation; 0: cores / workers, 1 with a GPU."
    )
    policy: Literal["fifo", "priority", "edf"] = Field("fifo", description="Which queued job goes next.")
    aging_ms: float = Field(
        50.0, gt=0.0, le=60_000.0, description="Waiting time that outweighs one step of priority (no starvation)."
    )
    predictor: str = Field(
        "",
        description="The predictor.json that `multi-dnn profile` learnt: DNNs are cut into jobs of even predicted "
        "time, and configuring predicts whether they fit the device. What it was not taught is measured. Empty: none.",
    )
    blocking_ms: float = Field(
        0.0,
        ge=0.0,
        le=60_000.0,
        description="Longest time that a job may take, alone on the device: each DNN is cut into the fewest jobs that "
        "keep to it, by its layers' predicted or measured times. 0: `dnn.<dnn>.jobs` counts.",
    )
    max_launched: int = Field(
        0,
        ge=0,
        le=64,
        description="On a GPU under priority or edf: most jobs that a more important frame could go before, launched "
        "and not finished; each is a launch of its own then. 0: no bound, all jobs of a frame are one launch.",
    )
    max_failures: int = Field(
        5, ge=1, le=1000, description="Failures in a row that disable a DNN; it is tried again later."
    )
    isolation: Literal["process", "none"] = Field(
        "process",
        description="process: the DNNs run in an engine process, which is replaced when it crashes or hangs (a GPU "
        "fault, a native library). none: in the node's own process, for debuggers.",
    )
    standby: Literal["none", "warm", "hot"] = Field(
        "none",
        description="What waits to replace a lost engine process: none; warm: a process with its imports done; hot: a "
        "second engine, ready to serve, which takes the memory of one.",
    )
    job_timeout_s: float = Field(
        5.0,
        ge=0.1,
        le=600.0,
        description="An engine process in which one job (on a CPU also a frame that runs as one network) takes longer "
        "hangs, and is replaced.",
    )
    heartbeat_timeout_s: float = Field(
        2.0,
        ge=0.2,
        le=600.0,
        description="An engine process that serves and gives no sign of life for so long hangs, and is replaced.",
    )
    fault_window_s: float = Field(
        60.0,
        ge=1.0,
        le=86_400.0,
        description="After two faults within this time the DNNs that were computing get engine processes of their own, "
        "until the one that causes them is known; those that serve without a fault for as long come back.",
    )
    stop_timeout_s: float = Field(
        2.0, gt=0.0, le=60.0, description="Longest wait for the jobs under way when stopping."
    )
    diagnostics_period_s: float = Field(1.0, ge=0.1, le=60.0, description="Time between two /diagnostics messages.")
    stale_after_s: float = Field(2.0, gt=0.0, le=3600.0, description="A camera silent for longer is reported STALE.")
