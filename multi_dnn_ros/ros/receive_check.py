"""Checks whether a socket's receive buffer holds a camera's images, and explains what to change if not.

A raw image arrives as one burst of datagrams, faster than the middleware reads them, so the receive buffer must hold
all of it. The kernel grants at most ``net.core.rmem_max`` (212,992 bytes on stock kernels up to 6.8) and counts the
buffer as twice the granted size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from multi_dnn_ros.ros.loss_source import LossSource
from multi_dnn_ros.ros.losses import Losses
from multi_dnn_ros.ros.middleware import CYCLONE, Middleware, limit_text, rmem_max_bytes
from multi_dnn_ros.ros.socket_drops import receive_buffer_bytes

#: Payload that fits a receive buffer, as a share of its size as the kernel counts it. Measured: 0.884 with datagrams of
#: 14,720 bytes on the loopback interface, Linux 6.18.
_PAYLOAD_SHARE = 0.88
#: Smallest net.core.rmem_max that is recommended.
_MIN_RECOMMENDED = 10_485_760
_SYSCTL_FILE = "/etc/sysctl.d/60-multi-dnn-ros.conf"
#: Image that is assumed while the size of the images is unknown.
_EXAMPLE = ("1280x720 bgr8", 1280 * 720 * 3)


def needed_rmem_max(image_bytes: int) -> int:
    """The smallest ``net.core.rmem_max`` with which a socket's receive buffer holds an image."""
    return math.ceil(image_bytes / _PAYLOAD_SHARE / 2)


def recommended_rmem_max(image_bytes: int) -> int:
    """The ``net.core.rmem_max`` to recommend: 10 MiB or, if that is more, twice what the image needs, rounded up to
    whole MiB.
    """
    return max(_MIN_RECOMMENDED, math.ceil(2 * needed_rmem_max(image_bytes) / 2**20) * 2**20)


def publisher_warning(topic: str, image_bytes: int, limit: int | None) -> str:
    """A publisher's warning that images do not fit the receive buffers that subscribers can have; empty if they fit.

    limit: net.core.rmem_max of this computer; None: unknown.
    """
    needed = needed_rmem_max(image_bytes)
    if limit is None or limit >= needed:
        return ""
    return (
        f"images of {image_bytes} bytes on {topic} do not fit the largest receive buffer that the kernel grants, so "
        f"subscribers lose most of them: net.core.rmem_max must be at least {needed} and is {limit}. As root: "
        f"`sysctl -w net.core.rmem_max={recommended_rmem_max(image_bytes)}`; or publish JPEG (--transport compressed); "
        "see docs/cameras.md"
    )


class ReceiveCheck:
    """The check of one node. It warns again only if a larger limit is needed.

    warn, info: log a line. limit: returns net.core.rmem_max. buffer: returns the largest receive buffer of this
    process's UDP sockets as the kernel counts it. Both return None if the value is not available.
    """

    def __init__(
        self,
        middleware: Middleware,
        warn: Callable[[str], None],
        info: Callable[[str], None],
        limit: Callable[[], int | None] = rmem_max_bytes,
        buffer: Callable[[], int | None] = receive_buffer_bytes,
    ) -> None:
        self.middleware = middleware
        self._warn = warn
        self._info = info
        self._limit = limit
        self._buffer = buffer
        self._warned_bytes = -1  # net.core.rmem_max that the last warning recommended
        self._warned_unknown = False  # whether a camera without an image was warned about

    def log_limit(self, raw_cameras: list[str]) -> None:
        """Log, before the first image, the largest raw image that fits the receive buffer, if that is smaller than
        1280x720 bgr8.
        """
        buffer = self._buffer()
        if raw_cameras and buffer is not None and not self._fits(_EXAMPLE[1], buffer):
            self._info(
                f"receive buffers: {buffer} bytes, net.core.rmem_max is {limit_text(self._limit())}: raw images of "
                f"more than {math.floor(buffer * _PAYLOAD_SHARE)} bytes do not fit (cameras: "
                f"{', '.join(raw_cameras)}); see docs/cameras.md"
            )

    def check_first_image(
        self, camera: str, image: str, image_bytes: int, reliable: bool, transport: str = "raw"
    ) -> None:
        """Check the size of a camera's first image. image: size and encoding as text, such as `1280 x 720 bgr8`.

        reliable: whether the subscription is. A reliable camera may send as much as the buffer holds and the rest on
        demand (config/cyclonedds.xml), so a small buffer alone is no reason for a warning; see
        :meth:`check_after_losses`.
        """
        if self._needs_sockets() and not reliable:
            self._check(camera, image, image_bytes, transport)

    def check_after_losses(self, camera: str, image: str, image_bytes: int, transport: str = "raw") -> None:
        """Check a camera whose images are being lost. image_bytes: size of the last image; 0: none yet."""
        self._check(camera, image, image_bytes, transport)

    def explain_losses(
        self, losses: Losses, image_bytes: int, reliable: bool, camera: str, transport: str = "raw"
    ) -> str:
        """The most likely reason for missing images, and what helps; for the status of the camera."""
        buffer, limit = self._buffer(), self._limit()
        needed = needed_rmem_max(image_bytes or _EXAMPLE[1])
        if (
            buffer is not None
            and not self._fits(image_bytes or _EXAMPLE[1], buffer)
            and (losses.dropped_datagrams or not reliable)
        ):
            if limit is not None and limit < needed:
                return (
                    f"net.core.rmem_max is {limit}, an image needs {needed}: "
                    f"sysctl -w net.core.rmem_max={recommended_rmem_max(image_bytes)}, or {_smaller(transport)}; "
                    "see docs/cameras.md"
                )
            return (
                f"the sockets' receive buffer is {buffer // 2}, an image needs {needed}: configure the middleware "
                "as described in docs/cameras.md"
            )
        if losses.dropped_datagrams:
            return (
                "the kernel dropped datagrams because receive buffers were full: this computer is overloaded; "
                "see docs/cameras.md"
            )
        if losses.source is LossSource.RATE:
            return f"the camera sends fewer images than camera.{camera}.rate_hz, or the network loses images"
        shared_memory = self.middleware.name.startswith("rmw_fastrtps") and not self._needs_sockets()
        if not reliable and shared_memory:
            return "the network, or the camera's shared-memory segment (Fast DDS), loses images; see docs/cameras.md"
        if not reliable:
            return "the network loses images, or the camera skipped frames; see docs/cameras.md"
        if shared_memory:
            return (
                "the shared-memory segment of the camera's process is too small for its images at this load: use "
                "config/fastdds_shared_memory.xml for that process, or raise net.core.rmem_max; see docs/cameras.md"
            )
        return f"the camera skipped frames, or its queue or the subscription's queue (camera.{camera}.depth) overflowed"

    def _needs_sockets(self) -> bool:
        """Whether images certainly arrive by UDP, because a file of this package configures the middleware."""
        if self.middleware.package_file is None:
            return False
        return self.middleware.name == CYCLONE or self.middleware.package_file.name == "fastdds_udp.xml"

    def _fits(self, image_bytes: int, buffer: int) -> bool:
        return image_bytes <= buffer * _PAYLOAD_SHARE

    def _check(self, camera: str, image: str, image_bytes: int, transport: str) -> None:
        buffer, limit = self._buffer(), self._limit()
        known = bool(image_bytes)
        if not known:
            image, image_bytes = _EXAMPLE
        recommended = recommended_rmem_max(image_bytes)
        if buffer is None or limit is None or self._fits(image_bytes, buffer) or recommended <= self._warned_bytes:
            return
        if known:
            self._warned_bytes = recommended
            start = f"camera {camera}: images of {image} ({image_bytes} bytes) are lost before they reach the node: "
        elif self._warned_unknown:
            return
        else:
            self._warned_unknown = True
            start = (
                f"camera {camera}: no image has arrived and the kernel drops datagrams; for images of {image} "
                f"({image_bytes} bytes) "
            )
        needed = needed_rmem_max(image_bytes)
        if limit >= needed:
            self._warn(
                f"{start}the sockets' receive buffer needs {needed} bytes and is {buffer // 2}, though "
                f"net.core.rmem_max allows {limit}. Restart the node if the limit was raised after its start; "
                "otherwise configure the receive buffer of the middleware as described in docs/cameras.md"
            )
            return
        self._warn(
            f"{start}net.core.rmem_max must be at least {needed} and is {limit}. As root: "
            f"`sysctl -w net.core.rmem_max={recommended}`; permanently: "
            f"`echo net.core.rmem_max={recommended} > {_SYSCTL_FILE}`; then restart the node. Without root: "
            f"{_smaller(transport, camera)}, or a reliable camera whose process has "
            "config/cyclonedds.xml (Cyclone DDS) or config/fastdds_shared_memory.xml (Fast DDS); see docs/cameras.md"
        )


def _smaller(transport: str, camera: str = "") -> str:
    """How to make the images smaller, in words. camera: its name, to include its parameter."""
    if transport == "compressed":
        return "smaller images or a lower JPEG quality"
    return f"JPEG images (parameter camera.{camera}.transport: compressed)" if camera else "JPEG images"
