"""The names of rclpy that the standalone runtime offers: module -> name -> module of this package that has it."""

from __future__ import annotations

from typing import Final

SURFACE: Final[dict[str, dict[str, str]]] = {
    "rclpy": {},
    "rclpy.serialization": {"deserialize_message": "cdr", "serialize_message": "cdr"},
}
