"""The schema: type, default, range and description of every parameter.

The node declares its ROS parameters from these models, and the offline commands validate parameter files with them.
The tables of docs/parameters.md are generated from them by ``python -m multi_dnn_ros.settings.parameter_table``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from multi_dnn_ros.settings.dnn_schema import NAMES, Name, Section
from multi_dnn_ros.settings.dnn_schema import DnnConfig as DnnConfig
from multi_dnn_ros.settings.dnn_schema import OutputConfig as OutputConfig
from multi_dnn_ros.settings.forms import DEVICE, DEVICE_FORMS

#: Queue depth of a camera's subscription if the parameter is 0 (measured, docs/cameras.md). Reliable subscriptions need
#: a longer queue: images that were waiting for a resent one arrive together.
BEST_EFFORT_DEPTH, RELIABLE_DEPTH = 5, 10
#: Time for frames in progress when the node is deactivated, and time without images after which a camera is STALE.
STOP_TIMEOUT_S, STALE_AFTER_S = 2.0, 2.0
_POSE_RULE = "an empty list, or 6 numbers: x, y, z in m, with z above 0, and roll, pitch, yaw in rad, from -3.2 to 3.2"


def _checked_pose(values: list[float]) -> list[float]:
    """`values`, if they are allowed for `pose`; otherwise ValueError."""
    if values and (len(values) != 6 or values[2] <= 0.0 or max(map(abs, values[3:])) > 3.2):
        raise ValueError(_POSE_RULE)
    return values


class CameraConfig(Section):
    """One camera (parameters ``camera.<camera>.*``)."""

    topic: str = Field("")
    """Topic of the images. Empty: `<camera>/image_raw`, with transport compressed `<camera>/image_raw/compressed`."""
    transport: Literal["raw", "compressed"] = Field("raw")
    """Message type of the topic. raw: sensor_msgs/Image. compressed: sensor_msgs/CompressedImage."""
    qos: Literal["auto", "sensor_data", "system_default", "default", "reliable"] = Field("auto")
    """QoS profile of the subscription. auto: reliable if every publisher of the topic offers it, otherwise best
    effort, which is compatible with every publisher. sensor_data: best effort. default, reliable: reliable.
    system_default: the default of the middleware.
    """
    depth: int = Field(0, ge=0, le=100)
    """Queue depth of the subscription, in images. 0: 5 for best effort and 10 for reliable (measured, docs/cameras.md).
    With a longer queue fewer images are lost, but they may be older when they are processed.
    """
    max_pixels: int = Field(33177600, ge=1, le=268435456)
    """Maximum number of pixels of an image; larger ones are dropped as bad_image. The default is 7680 x 4320."""
    bits: int = Field(16, ge=8, le=16)
    """Number of bits that the camera uses of 16-bit values (encodings of 16 bits, and PNG), from the lowest: 10, 12 or
    14 for most industrial cameras. The largest value of these bits becomes white.
    """
    rate_hz: float = Field(0.0, ge=0.0, le=1000.0)
    """Expected frame rate in Hz, with which the rate of arrival is compared. If it is set for every camera, the node
    measures while configuring whether the DNNs fit the device. 0: unknown.
    """
    rectified: bool = Field(False)
    """Whether the images are rectified (image_proc): P and R of the CameraInfo are used instead of K and D."""
    pose: Annotated[list[float], AfterValidator(_checked_pose)] = Field(
        default_factory=list, json_schema_extra={"allowed": _POSE_RULE}
    )
    """Pose of the camera in `vehicle_frame` for points on the ground, in metres and radians (docs/results.md): x
    forward, y left, z up; a positive pitch turns it down, a positive yaw to the left. Empty: the pose comes from TF.
    """


class NodeConfig(Section):
    """All parameters of the node."""

    cameras: dict[Name, CameraConfig] = Field(min_length=1, json_schema_extra=NAMES)
    """Names of the cameras. They are part of the names of the topics."""
    dnns: dict[Name, DnnConfig] = Field(min_length=1, json_schema_extra=NAMES)
    """Names of the DNNs. They are part of the names of the output topics."""
    autostart: bool = Field(True)
    """Whether the node configures and activates itself when it starts."""
    device: str = Field("auto", pattern=DEVICE, json_schema_extra={"allowed": DEVICE_FORMS})
    """Device of the DNNs whose `dnn.<dnn>.device` is auto. auto: the first GPU, or the CPU if there is no GPU.
    `cpu:<threads>`: the CPU with at most this number of threads.
    """
    workers: int = Field(0, ge=0, le=16)
    """Maximum number of jobs that run at the same time on a CPU. 0: one per core, but at most one per DNN."""
    policy: Literal["fifo", "priority", "edf"] = Field("fifo")
    """Order of the job queue. fifo: first in, first out. priority: by `dnn.<dnn>.priority`; every 50 ms of waiting
    raise it by one, so that no job starves. edf: earliest deadline first.
    """
    blocking_ms: float = Field(0.0, ge=0.0, le=60000.0)
    """Maximum duration of a job in ms while nothing else is running. Each DNN is cut into the smallest number of
    jobs that meets this limit, based on measured layer times. 0: into `dnn.<dnn>.jobs` jobs.
    """
    isolation: Literal["process", "none"] = Field("process")
    """Where the DNNs run. process: in an engine process, which is replaced when it crashes or hangs. none: in the
    node's own process, for debuggers and profilers.
    """
    standby: Literal["none", "warm", "hot"] = Field("none")
    """What replaces an engine process that was lost. none: a new process. warm: a process that has already imported
    its libraries. hot: a second, configured engine, which needs as much memory as the first.
    """
    job_timeout_s: float = Field(5.0, ge=0.1, le=600.0)
    """Maximum duration in s of one job on a CPU, of one inference on a GPU, and of decoding outputs. An
    engine process that exceeds the limit is replaced.
    """
    fault_window_s: float = Field(60.0, ge=1.0, le=86400.0)
    """Time window in s. After two losses of the engine process within it, each DNN that was computing gets a
    separate process. A DNN that runs without a fault for this time returns to the common process.
    """
    diagnostics_period_s: float = Field(1.0, ge=0.1, le=60.0)
    """Period in s of the messages on /diagnostics."""
    vehicle_frame: str = Field(
        "base_link",
        pattern="^[^/\\s][^\\s]*$",
        json_schema_extra={"allowed": "a frame id: not empty, without spaces and without / at the beginning"},
    )
    """Frame of points on the ground: x forward, y left, z up (REP 105), its origin at the height of the road."""

    # Not parameters of the node: threads of an operation on the CPU (0: by the device), limits of heartbeats and of
    # stopping.
    cpu_threads: int = Field(0, exclude=True)
    heartbeat_timeout_s: float = Field(2.0, exclude=True)
    stop_timeout_s: float = Field(STOP_TIMEOUT_S, exclude=True)
