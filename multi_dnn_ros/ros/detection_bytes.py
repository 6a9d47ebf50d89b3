"""Detections as the bytes of a serialized message.

A message of boxes consists of a dozen objects per box, which take ten times as long to create and to serialize as its
bytes take to write. rclpy's publishers accept either.
"""

from __future__ import annotations

import functools
import struct

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message, serialize_message
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.ros.result_messages import detections_message
from multi_dnn_ros.vision.results import Detections, InstanceMasks

#: Marks little-endian CDR. Alignment counts from the first byte after it.
_ENCAPSULATION = b"\x00\x01\x00\x00"
#: Stamp of a header; length of the string or list that follows.
_STAMP_LENGTH, _LENGTH = struct.Struct("<iII"), struct.Struct("<I")
#: The numbers of a detection: score; position and orientation (x, y, z zero, w one) of a pose and its covariance, which
#: are unused; x, y, angle and size of the box.
_NUMBERS = struct.Struct("<d 48x d 288x 5d")
_NO_ID = b"\x01\x00\x00\x00\x00"


def published_detections(detections: Detections, header: Header) -> bytes | Detection2DArray:
    """What a publisher sends for detections, see :func:`multi_dnn_ros.ros.result_messages.detections_message`.

    The bytes of the message, or the message if the installed vision_msgs or middleware serializes it differently.
    """
    return detection_bytes(detections, header) if _is_layout() else detections_message(detections, header)


def published_instances(instances: InstanceMasks, header: Header) -> bytes | Detection2DArray:
    """As :func:`published_detections`, for the boxes of the instances."""
    return published_detections(instances.detections, header)


def detection_bytes(detections: Detections, header: Header) -> bytes:
    """vision_msgs/Detection2DArray (vision_msgs 4) as little-endian CDR."""
    frame = header.frame_id.encode() + b"\0"
    header_bytes = _STAMP_LENGTH.pack(header.stamp.sec, header.stamp.nanosec, len(frame)) + frame
    header_bytes += bytes(-len(header_bytes) % 4)
    body = bytearray(header_bytes + _LENGTH.pack(len(detections)))
    begins: dict[tuple[int, int], bytes] = {}
    ids = [0] * len(detections) if detections.ids is None else detections.ids.tolist()
    rows = zip(detections.boxes.tolist(), detections.scores.tolist(), detections.class_ids.tolist(), ids, strict=True)
    for (x1, y1, x2, y2), score, class_id, identity in rows:
        body += bytes(-len(body) % 4)
        key = class_id, len(body) % 8
        begin = begins.get(key)
        if begin is None:
            begin = begins[key] = _begin(header_bytes, class_id, len(body))
        body += begin
        body += _NUMBERS.pack(score, 1.0, (x1 + x2) / 2, (y1 + y2) / 2, 0.0, x2 - x1, y2 - y1)
        body += _string(str(identity)) if identity else _NO_ID
    return _ENCAPSULATION + body


def _begin(header_bytes: bytes, class_id: int, offset: int) -> bytes:
    """A detection at `offset` up to its score: its header, a list of one result, the class and padding."""
    begin = header_bytes + _LENGTH.pack(1) + _string(str(class_id))
    return begin + bytes(-(offset + len(begin)) % 8)


def _string(text: str) -> bytes:
    encoded = text.encode() + b"\0"
    return _LENGTH.pack(len(encoded)) + encoded


@functools.cache
def _is_layout() -> bool:
    """Whether the installed vision_msgs and middleware serialize messages in this layout.

    The bytes themselves are not compared: Fast CDR, which Fast DDS uses, does not initialize the padding.
    """
    boxes = np.array([[1, 2, 30, 40], [5, 6, 7, 8]], np.float32)
    sample = Detections(boxes, np.array([0.5, 0.25], np.float32), np.array([7, 12]), (), np.array([0, 345]))
    header = Header(stamp=Time(sec=1, nanosec=2), frame_id="camera")
    message, serialized = detections_message(sample, header), detection_bytes(sample, header)
    if len(serialized) != len(serialize_message(message)):
        return False
    try:
        return bool(deserialize_message(serialized, Detection2DArray) == message)
    except Exception:  # of the middleware, which raises several types
        return False
