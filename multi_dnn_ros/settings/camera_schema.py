"""The schema of the parameters of a camera."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from multi_dnn_ros.settings.section import Section

#: Queue depth of a camera's subscription if the parameter is 0 (measured, docs/cameras.md). Reliable subscriptions need
#: a longer queue: images that were waiting for a resent one arrive together.
BEST_EFFORT_DEPTH, RELIABLE_DEPTH = 5, 10


class CameraConfig(Section):
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
    bits: int = Field(
        16,
        ge=8,
        le=16,
        description="Number of bits that the camera uses of 16-bit values (mono16, rgb16, bgr16, 16-bit Bayer and "
        "PNG), counted from the lowest: 10, 12 or 14 for most industrial cameras. The largest value of these bits "
        "becomes white. If the first image uses a small part of the range, a warning says so.",
    )
    jpeg_decoder: Literal["auto", "cpu", "gpu"] = Field(
        "auto",
        description="Where JPEG images are decoded (transport compressed). auto: on the GPU, by nvJPEG, if all DNNs of "
        "the camera run on GPUs that can decode JPEG; otherwise on the CPU. cpu: on the CPU. gpu: as auto, but "
        "configuring fails if a device of these DNNs cannot decode JPEG. PNG, and kinds of JPEG that nvJPEG does not "
        "support, are always decoded on the CPU (docs/cameras.md).",
    )
    rate_hz: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="Expected frame rate in Hz. If it is set for every camera, the node measures while configuring "
        "whether the DNNs fit the device at these rates. The rate of arrival is compared with it. 0: unknown; the fit "
        "is not measured, and lost images are noticed only if the middleware reports them.",
    )

    # Results on the ground, in metres (docs/results.md)
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
        0.0, ge=-100.0, le=100.0, description="x of the camera in `vehicle_frame` in m; positive is forward."
    )
    y_m: float = Field(
        0.0, ge=-100.0, le=100.0, description="y of the camera in `vehicle_frame` in m; positive is to the left."
    )
    roll_rad: float = Field(
        0.0,
        ge=-3.2,
        le=3.2,
        description="Roll of the camera in rad; positive is clockwise, seen from behind (REP 103).",
    )
    pitch_rad: float = Field(
        0.0, ge=-1.6, le=1.6, description="Pitch of the camera in rad; positive is down (REP 103)."
    )
    yaw_rad: float = Field(0.0, ge=-3.2, le=3.2, description="Yaw of the camera in rad; positive is to the left.")
