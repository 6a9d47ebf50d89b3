"""The schema: type, default, range and description of every parameter.

The node declares its ROS parameters from these models, and the offline commands validate parameter files with them.
docs/parameters.md and ``config/multi_dnn.yaml`` are generated from them by
``python -m multi_dnn_ros.settings.parameter_table``; a test fails if they are out of date.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from multi_dnn_ros.settings.dnn_schema import DnnConfig as DnnConfig
from multi_dnn_ros.settings.dnn_schema import OutputConfig as OutputConfig
from multi_dnn_ros.settings.forms import DEVICE, DEVICE_FORMS
from multi_dnn_ros.settings.section import Name, Section

#: Queue depth of a camera's subscription if the parameter is 0 (measured, docs/cameras.md). Reliable subscriptions need
#: a longer queue: images that were waiting for a resent one arrive together.
BEST_EFFORT_DEPTH, RELIABLE_DEPTH = 5, 10
#: Time for frames in progress when the node is deactivated, and time without images after which a camera is STALE.
STOP_TIMEOUT_S, STALE_AFTER_S = 2.0, 2.0


class CameraConfig(Section):
    """One camera (parameters ``camera.<camera>.*``)."""

    topic: str = Field("")
    """Topic of the images. Empty: `<camera>/image_raw`, or `<camera>/image_raw/compressed` if transport is
    compressed.
    """
    transport: Literal["raw", "compressed"] = Field("raw")
    """Message type of the topic. raw: sensor_msgs/Image. compressed: sensor_msgs/CompressedImage."""
    qos: Literal["auto", "sensor_data", "system_default", "default", "reliable"] = Field("auto")
    """QoS profile of the subscription. auto: reliable if every publisher of the topic offers it, otherwise best
    effort, which is compatible with every publisher. sensor_data: best effort. default, reliable: reliable.
    system_default: the default of the middleware.
    """
    depth: int = Field(0, ge=0, le=100)
    """Queue depth of the subscription, in images. 0: 5 for best effort and 10 for
    reliable (measured, docs/cameras.md). With a longer queue fewer images are lost, but they may be older when
    they are processed.
    """
    max_pixels: int = Field(33177600, ge=1, le=268435456)
    """Maximum number of pixels of an image. Larger images are dropped as bad_image. The default is 7680 x 4320 (8K
    UHD).
    """
    bits: int = Field(16, ge=8, le=16)
    """Number of bits that the camera uses of 16-bit values (mono16, rgb16, bgr16, 16-bit Bayer and PNG), counted
    from the lowest: 10, 12 or 14 for most industrial cameras. The largest value of these bits becomes white. If
    the first image uses a small part of the range, a warning says so.
    """
    rate_hz: float = Field(0.0, ge=0.0, le=1000.0)
    """Expected frame rate in Hz. If it is set for every camera, the node measures while configuring whether the DNNs
    fit the device at these rates. The rate of arrival is compared with it. 0: unknown; the fit is not measured,
    and lost images are noticed only if the middleware reports them.
    """

    # Results on the ground, in metres (docs/results.md)
    rectified: bool = Field(False)
    """Whether the images are rectified (image_proc): P and R of the CameraInfo are used instead of K and D."""
    height_m: float = Field(0.0, ge=0.0, le=100.0)
    """Height in m of the camera above the ground. 0: unknown; the pose of the camera comes from TF, and `x_m` to
    `yaw_rad` have no effect.
    """
    x_m: float = Field(0.0, ge=-100.0, le=100.0)
    """x of the camera in `vehicle_frame` in m; positive is forward."""
    y_m: float = Field(0.0, ge=-100.0, le=100.0)
    """y of the camera in `vehicle_frame` in m; positive is to the left."""
    roll_rad: float = Field(0.0, ge=-3.2, le=3.2)
    """Roll of the camera in rad; positive is clockwise, seen from behind (REP 103)."""
    pitch_rad: float = Field(0.0, ge=-1.6, le=1.6)
    """Pitch of the camera in rad; positive is down (REP 103)."""
    yaw_rad: float = Field(0.0, ge=-3.2, le=3.2)
    """Yaw of the camera in rad; positive is to the left."""


class NodeConfig(Section):
    """All parameters of the node."""

    autostart: bool = Field(True)
    """Whether the node configures and activates itself when it starts."""
    cameras: dict[Name, CameraConfig] = Field(min_length=1)
    """Names of the cameras. They are part of the names of the topics."""
    dnns: dict[Name, DnnConfig] = Field(min_length=1)
    """Names of the DNNs. They are part of the names of the output topics."""
    device: str = Field("auto", pattern=DEVICE, json_schema_extra={"allowed": DEVICE_FORMS})
    """Device of the DNNs whose `dnn.<dnn>.device` is auto. auto: the first GPU, or the CPU if there is no GPU.
    `cpu:<threads>`: the CPU with at most this number of threads.
    """
    workers: int = Field(0, ge=0, le=16)
    """Maximum number of jobs that run at the same time on a CPU. 0: one per core, but at most one per DNN. No effect
    on a GPU, where one thread launches the frames of all DNNs.
    """
    policy: Literal["fifo", "priority", "edf"] = Field("fifo")
    """Order of the job queue. fifo: first in, first out. priority: by `dnn.<dnn>.priority`. edf: earliest deadline
    first.
    """
    aging_ms: float = Field(50.0, gt=0.0, le=60000.0)
    """Under policy priority: waiting time in ms that raises the priority of a job by one, so that no job starves."""
    blocking_ms: float = Field(0.0, ge=0.0, le=60000.0)
    """Maximum duration of a job in ms while nothing else is running. Each DNN is cut into the smallest number of
    jobs that meets this limit, based on measured layer times. 0: each DNN is cut into
    `dnn.<dnn>.jobs` jobs.
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
    """Maximum duration in s: on a CPU of one job, or of a frame that runs as one network; on a GPU of one inference,
    from the launch of its first job until its outputs have arrived; on both also of decoding the outputs.
    An engine process that exceeds the limit is replaced.
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

    # Not parameters of the node: threads of an operation on the CPU (0: by the device), failures in a row that disable
    # a DNN, limits of heartbeats and of stopping, and the time without an image after which a camera is STALE.
    cpu_threads: int = Field(0, exclude=True)
    max_failures: int = Field(5, exclude=True)
    heartbeat_timeout_s: float = Field(2.0, exclude=True)
    stop_timeout_s: float = Field(STOP_TIMEOUT_S, exclude=True)
