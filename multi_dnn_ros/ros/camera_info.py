"""sensor_msgs/CameraInfo as the calibration of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from multi_dnn_ros.vision.ground import ImageArea
from multi_dnn_ros.vision.lens import CalibrationError, Lens, Points, checked_lens

#: A resized image may differ from the exact aspect ratio by this number of pixels.
_ROUNDING = 1.0


@dataclass(frozen=True)
class Calibration:
    """A checked CameraInfo.

    rotation: (3, 3) from the frame of the image's rays to the optical frame; not the identity for rectified images of
    a stereo camera. size: (width, height) of the calibrated image. roi: left, top, width and height of the region of
    interest. binning: horizontal and vertical.
    """

    lens: Lens
    rotation: Points
    size: tuple[int, int]
    roi: tuple[int, int, int, int]
    binning: tuple[int, int]

    def area(self, image_size: tuple[int, int]) -> ImageArea:
        """The area of the calibrated image that an image of (width, height) shows.

        The image has the size of the region of interest, divided by the binning, or was resized from it with the same
        aspect ratio. Raises CalibrationError if the aspect ratio differs.
        """
        left, top, *roi_size = self.roi
        expected = tuple(size / factor for size, factor in zip(roi_size, self.binning, strict=True))
        width, height = image_size
        if abs(width * expected[1] / expected[0] - height) > _ROUNDING:
            raise CalibrationError(
                f"the image has {width} x {height} pixels, but the CameraInfo is for {expected[0]:g} x "
                f"{expected[1]:g}, or another size with that aspect ratio; calibrate the camera at the size of its "
                "images, or set roi in the CameraInfo"
            )
        return ImageArea((float(left), float(top)), (roi_size[0] / width, roi_size[1] / height))


def checked_calibration(info: Any, *, rectified: bool) -> Calibration:
    """The calibration of a CameraInfo. rectified: P and R are used instead of K and D.

    Raises CalibrationError if the camera is not calibrated or the message is invalid.
    """
    size = (int(info.width), int(info.height))
    if 0 in size:
        raise CalibrationError(
            f"the CameraInfo is for {size[0]} x {size[1]} pixels: the camera is not calibrated; calibrate it "
            "(camera_calibration) and load the file in its driver"
        )
    rotation = np.eye(3)
    if rectified:
        lens = checked_lens(np.array(info.p, np.float64).reshape(3, 4)[:, :3].ravel().tolist(), (), "")
        given = np.array(info.r, np.float64).reshape(3, 3)
        if not np.isfinite(given).all() or (given.any() and np.abs(given @ given.T - np.eye(3)).max() > 1e-3):
            raise CalibrationError("R of the CameraInfo is not a rotation; calibrate the camera again")
        rotation = given.T if given.any() else rotation
    else:
        lens = checked_lens(list(info.k), list(info.d), info.distortion_model)
    roi = info.roi
    part = (int(roi.x_offset), int(roi.y_offset), int(roi.width) or size[0], int(roi.height) or size[1])
    if part[0] + part[2] > size[0] or part[1] + part[3] > size[1]:
        raise CalibrationError(
            f"the region of interest of the CameraInfo ({part[2]} x {part[3]} at {part[0]}, {part[1]}) is not inside "
            f"its {size[0]} x {size[1]} pixels; correct the driver's roi"
        )
    return Calibration(lens, rotation, size, part, (int(info.binning_x) or 1, int(info.binning_y) or 1))


def content(info: Any) -> tuple[Any, ...]:
    """What a calibration depends on; equal for equal calibrations, so that each is checked only once."""
    roi = info.roi
    return (
        *(info.width, info.height, info.distortion_model, bytes(np.array(info.d, np.float64))),
        *(bytes(np.array(values, np.float64)) for values in (info.k, info.r, info.p)),
        *(info.binning_x, info.binning_y, roi.x_offset, roi.y_offset, roi.width, roi.height),
    )


def info_topic(image_topic: str, transport: str) -> str:
    """The conventional topic of the calibration of an absolute image topic: `camera_info` in its namespace."""
    base = image_topic.removesuffix("/compressed") if transport == "compressed" else image_topic
    return f"{base.rpartition('/')[0]}/camera_info"
