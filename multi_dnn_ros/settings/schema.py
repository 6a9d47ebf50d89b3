"""The schema: type, default, range and description of every parameter.

The node declares its ROS parameters from these models, and the offline commands validate parameter files with them.
docs/parameters.md and ``config/multi_dnn.yaml`` are generated from them by
``python -m multi_dnn_ros.settings.parameter_table``; a test fails if they are out of date.

The sections of cameras and DNNs have separate modules; their names can be imported from here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from multi_dnn_ros.settings.camera_schema import BEST_EFFORT_DEPTH as BEST_EFFORT_DEPTH
from multi_dnn_ros.settings.camera_schema import RELIABLE_DEPTH as RELIABLE_DEPTH
from multi_dnn_ros.settings.camera_schema import CameraConfig as CameraConfig
from multi_dnn_ros.settings.dnn_schema import DnnConfig as DnnConfig
from multi_dnn_ros.settings.dnn_schema import OutputConfig as OutputConfig
from multi_dnn_ros.settings.forms import DEVICE, DEVICE_FORMS
from multi_dnn_ros.settings.section import Name, Section


class NodeConfig(Section):
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
        pattern=DEVICE,
        description="Device of the DNNs whose `dnn.<dnn>.device` is auto. auto: the first GPU, or the CPU if there is "
        "no GPU. `cpu:<threads>`: the CPU with at most this number of threads.",
        json_schema_extra={"allowed": DEVICE_FORMS},
    )
    workers: int = Field(
        0,
        ge=0,
        le=16,
        description="Maximum number of jobs that run at the same time on a CPU. 0: one per core, but at most one per "
        "DNN. No effect on a GPU, where one thread launches the frames of all DNNs.",
    )
    cpu_threads: int = Field(
        0,
        ge=0,
        le=256,
        description="Number of threads that one operation uses on the CPU. 0: for DNNs on a CPU the number of cores "
        "divided by the number of workers; for DNNs on a GPU 1.",
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
        description="Path of a predictor.json from `multi-dnn profile learn`. The DNNs are then cut into jobs of equal "
        "predicted time; layers that the predictor does not know are measured. Empty: none.",
    )
    blocking_ms: float = Field(
        0.0,
        ge=0.0,
        le=60_000.0,
        description="Maximum duration of a job in ms while nothing else is running. Each DNN is cut into the smallest "
        "number of jobs that meets this limit, based on predicted or measured layer times. 0: each DNN is cut into "
        "`dnn.<dnn>.jobs` jobs.",
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
        "none: in the node's own process, for debuggers and profilers.",
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
        description="Maximum duration in s: on a CPU of one job, or of a frame that runs as one network; on a GPU of "
        "one inference, from the launch of its first job until its outputs have arrived; on both also of decoding the "
        "outputs or a JPEG image. An engine process that exceeds the limit is replaced.",
    )
    heartbeat_timeout_s: float = Field(
        2.0,
        ge=0.2,
        le=600.0,
        description="Maximum time in s between two heartbeats of a configured engine process. A process that exceeds "
        "the limit is replaced.",
    )
    fault_window_s: float = Field(
        60.0,
        ge=1.0,
        le=86_400.0,
        description="Time window in s. After two losses of the engine process within it, each DNN that was computing "
        "gets a separate process. A DNN that runs without a fault for this time returns to the common process.",
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

    # Results on the ground, in metres (docs/results.md)
    vehicle_frame: str = Field(
        "base_link",
        pattern=r"^[^/\s][^\s]*$",
        description="Frame of points on the ground: x forward, y left, z up (REP 105), its origin at the height of the "
        "road.",
        json_schema_extra={"allowed": "a frame id: not empty, without spaces and without / at the beginning"},
    )
