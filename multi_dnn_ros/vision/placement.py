"""Moves results from a window of the image to the whole image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from multi_dnn_ros.vision.results import Detections, InstanceMasks, Lane, Lanes, Mask
from multi_dnn_ros.vision.view import Window


def place_detections(found: Detections, window: Window, size: tuple[int, int]) -> Detections:
    """Boxes in pixels of a window -> boxes in pixels of the image. size: (H, W) of the image."""
    offset = np.array([window.left, window.top, window.left, window.top], np.float32)
    return replace(found, boxes=found.boxes + offset)


def place_lanes(found: Lanes, window: Window, size: tuple[int, int]) -> Lanes:
    """Lane lines in pixels of a window -> lines in pixels of the image. size: (H, W) of the image."""
    lanes = tuple(_place_lane(lane, window) for lane in found.lanes)
    return Lanes(found.numbers, lanes, size, window)


def place_mask(found: Mask, window: Window, size: tuple[int, int]) -> Mask:
    """The classes of a window -> a mask of the image, without a class elsewhere. size: (H, W) of the image."""
    return replace(found, size=size, window=window)


def place_instances(found: InstanceMasks, window: Window, size: tuple[int, int]) -> InstanceMasks:
    """Boxes and pixels of a window -> those of the image. size: (H, W) of the image."""
    return replace(found, detections=place_detections(found.detections, window, size), size=size, window=window)


def _place_lane(lane: Lane, window: Window) -> Lane:
    c0, c1, c2 = lane.curve.tolist()
    top = window.top
    curve = np.array([window.left + c0 - c1 * top + c2 * top**2, c1 - 2.0 * c2 * top, c2])
    return replace(lane, points=lane.points + np.array([window.left, top], np.float32), curve=curve)
