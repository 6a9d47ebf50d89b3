"""Whether the kernel's receive buffers hold a camera's images, and what to do where they do not.

A raw image arrives in one burst of datagrams, faster than anybody reads: the receive buffer of the socket must hold all
of it. The kernel grants at most ``net.core.rmem_max`` (212,992 bytes on stock kernels up to 6.8) and counts twice that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from multi_dnn_ros.ros.losses import Losses
from multi_dnn_ros.ros.middleware import CYCLONE, Middleware, rmem_max_bytes
from multi_dnn_ros.ros.socket_drops import receive_buffer_bytes

#: Payload that fits a receive buffer, as a share of what the kernel counts: datagrams of 14,720 bytes on the loopback
#: interface, Linux 6.18 (measured: 0.884).
_PAYLOAD_SHARE = 0.88
#: What to set the limit to, unless an image needs more.
_RECOMMENDED = 10_485_760
_SYSCTL_FILE = "/etc/sysctl.d/60-multi-dnn-ros.conf"
#: Where the size of the images is not known yet.
_EXAMPLE = ("1280x720 bgr8", 1280 * 720 * 3)


def needed_rmem_max(image_bytes: int) -> int:
    """The smallest ``net.core.rmem_max`` with which a socket's receive buffer holds an image."""
    return math.ceil(image_bytes / _PAYLOAD_SHARE / 2)


def recommended_rmem_max(image_bytes: int) -> int:
    """A limit to set: 10 MiB, or twice what the image needs."""
    return max(_RECOMMENDED, math.ceil(2 * needed_rmem_max(image_bytes) / 2**20) * 2**20)


def publisher_warning(topic: str, image_bytes: int, limit: int | None) -> str:
    """What a publisher of raw images says about subscribers that are not configured for them; empty where they fit.

    limit: this computer's net.core.rmem_max; None: unknown.
    """
    needed = needed_rmem_max(image_bytes)
    if limit is None or limit >= needed:
        return ""
    return (
        f"images of {image_bytes} bytes on {topic} do not fit the receive buffers of ordinary subscribers, which lose "
        f"most of them: net.core.rmem_max must be at least {needed} and is {limit}. As root: "
        f"`sysctl -w net.core.rmem_max={recommended_rmem_max(image_bytes)}`; or publish JPEG (--transport compressed); "
        "docs/cameras.md"
    )


class ReceiveCheck:
    """Of one node: warns once, not for each camera and image.

    warn, info: take a line for the log. limit, buffer: tell net.core.rmem_max and the largest receive buffer of this
    process's UDP sockets as the kernel counts it; None where there is none.
    """

    def __init__(
        self,
        middleware: Middleware,
        warn: Callable[[str], None],
        info: Callable[[str], None],
        limit: Callable[[], int | None] = rmem_max_bytes,
        buffer: Callable[[], int | None] = receive_buffer_bytes,
    ) -> None:
        self._middleware = middleware
        self._warn = warn
        self._info = info
        self._limit = limit
        self._buffer = buffer
        self._told_bytes = -1
        self._told_unknown = False  # the warning of a camera whose images' size is not known

    def configured(self, raw_cameras: list[str]) -> None:
        """Say before the first image what can arrive, where that is less than common cameras send."""
        buffer = self._buffer()
        if raw_cameras and buffer is not None and not self._fits(_EXAMPLE[1], buffer) and self._middleware.name:
            self._info(
                f"receive buffers: {buffer} bytes, net.core.rmem_max is {self._limit()}: raw images of more than "
                f"{math.floor(buffer * _PAYLOAD_SHARE)} bytes do not fit (cameras: {', '.join(raw_cameras)}); "
                "docs/cameras.md says what they need"
            )

    def first_image(self, camera: str, image: str, image_bytes: int, reliable: bool, transport: str = "raw") -> None:
        """The camera's first image has shown its size. image: in words. reliable: the subscription is.

        A reliable camera may send what the buffer holds and the rest on demand (config/cyclonedds.xml): only losses
        tell that it does not.
        """
        if self._needs_sockets() and not reliable:
            self._check(camera, image, image_bytes, transport)

    def losing(self, camera: str, image: str, image_bytes: int, transport: str = "raw") -> None:
        """Images of the camera are being lost; image_bytes 0: none has arrived yet."""
        self._check(camera, image, image_bytes, transport)

    def cause(self, losses: Losses, image_bytes: int, reliable: bool, camera: str, transport: str = "raw") -> str:
        """Why images are missing, most likely, and what helps; for the camera's diagnostics."""
        buffer, limit = self._buffer(), self._limit() or 0
        needed = needed_rmem_max(image_bytes or _EXAMPLE[1])
        if buffer is not None and not self._fits(image_bytes or _EXAMPLE[1], buffer) and (losses.drops or not reliable):
            if limit < needed:
                return (
                    f"net.core.rmem_max is {limit}, an image needs {needed}: "
                    f"sysctl -w net.core.rmem_max={recommended_rmem_max(image_bytes)}, or {_smaller(transport)}; "
                    "docs/cameras.md"
                )
            return (
                f"the sockets' receive buffer is {buffer // 2}, an image needs {needed}: configure the middleware as "
                "docs/cameras.md says"
            )
        if losses.drops:
            return "the kernel dropped datagrams at full receive buffers: this computer is overloaded; docs/cameras.md"
        if losses.source == "rate_hz":
            return f"the camera sends less than camera.{camera}.rate_hz says, or the network loses images"
        if not reliable:
            return "the network, or the camera's shared-memory segment (Fast DDS), loses images; docs/cameras.md"
        if self._middleware.name.startswith("rmw_fastrtps"):
            return (
                "its shared-memory segment is too small for the camera's images at this load: "
                "config/fastdds_shared_memory.xml for the camera's process, or a larger net.core.rmem_max; "
                "docs/cameras.md"
            )
        return f"the camera skipped frames, or its queue or the subscription's queue (camera.{camera}.depth) overflowed"

    def _needs_sockets(self) -> bool:
        """Whether images surely come in by UDP: by settings of ours. A user's own may use shared memory or TCP."""
        if self._middleware.ours is None:
            return False
        return self._middleware.name == CYCLONE or self._middleware.ours.name == "fastdds_udp.xml"

    def _fits(self, image_bytes: int, buffer: int) -> bool:
        return image_bytes <= buffer * _PAYLOAD_SHARE

    def _check(self, camera: str, image: str, image_bytes: int, transport: str) -> None:
        buffer, limit = self._buffer(), self._limit()
        known = bool(image_bytes)
        if not known:
            image, image_bytes = _EXAMPLE
        recommended = recommended_rmem_max(image_bytes)
        if buffer is None or limit is None or self._fits(image_bytes, buffer) or recommended <= self._told_bytes:
            return
        if known:
            self._told_bytes = recommended
            begin = f"camera {camera}: images of {image} ({image_bytes} bytes) are lost before they reach the node: "
        elif self._told_unknown:
            return
        else:
            self._told_unknown = True
            begin = (
                f"camera {camera}: no image has arrived and the kernel drops datagrams; for images of {image} "
                f"({image_bytes} bytes) "
            )
        needed = needed_rmem_max(image_bytes)
        if limit >= needed:
            self._warn(
                f"{begin}the sockets' receive buffer needs {needed} bytes and is {buffer // 2}, though "
                f"net.core.rmem_max allows {limit}. Start the node again if the limit was raised after it; else "
                "configure the middleware's receive buffer as docs/cameras.md says"
            )
            return
        self._warn(
            f"{begin}net.core.rmem_max must be at least {needed} and is {limit}. As root: "
            f"`sysctl -w net.core.rmem_max={recommended}`; permanently: "
            f"`echo net.core.rmem_max={recommended} > {_SYSCTL_FILE}`; then start the node again. Without root: "
            f"{_smaller(transport, camera)}, or a reliable camera whose process has "
            "config/cyclonedds.xml (Cyclone DDS) or config/fastdds_shared_memory.xml (Fast DDS); docs/cameras.md"
        )


def _smaller(transport: str, camera: str = "") -> str:
    """What makes the images of a camera smaller, in words. camera: its parameter is named, too."""
    if transport == "compressed":
        return "smaller images or a lower JPEG quality"
    return f"JPEG images (parameter camera.{camera}.transport: compressed)" if camera else "JPEG images"
