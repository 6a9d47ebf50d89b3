"""Warnings about endpoints with incompatible QoS, like rclpy's default event callbacks.

A publisher and a subscription with incompatible QoS never connect, without any other sign. DDS sets a status on both;
an executor detects the status and logs it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from cyclonedds.core import DDSStatus
from cyclonedds.internal import DDS, dds_c_t

from multi_dnn_ros.standalone.callback_groups import CallbackGroup
from multi_dnn_ros.standalone.dds import Reader, Writer
from multi_dnn_ros.standalone.entities import Waitable, Work

# The policies that rmw_cyclonedds reports, by their numbers in DDS 1.4, 2.2.3.
_POLICIES: Final = {2: "DURABILITY", 4: "DEADLINE", 8: "LIVELINESS", 11: "RELIABILITY", 13: "HISTORY", 21: "LIFESPAN"}
_SUBSCRIPTION: Final = (
    "New publisher discovered on topic '{}', offering incompatible QoS. No messages will be received from it. "
    "Last incompatible policy: {}"
)
_PUBLISHER: Final = (
    "New subscription discovered on topic '{}', requesting incompatible QoS. No messages will be sent to it. "
    "Last incompatible policy: {}"
)


class IncompatibleQos(Waitable):
    """Logs a warning when an endpoint is discovered whose QoS is incompatible with that of a reader or writer."""

    def __init__(
        self, endpoint: Reader | Writer, callback_group: CallbackGroup, topic: str, warn: Callable[[str], Any]
    ) -> None:
        super().__init__(callback_group)
        self._endpoint = endpoint
        self.condition = endpoint.entity  # triggers while the status is set
        reads = isinstance(endpoint, Reader)
        self._status: Any = (
            dds_c_t.requested_incompatible_qos_status() if reads else dds_c_t.offered_incompatible_qos_status()
        )
        kind = "requested" if reads else "offered"
        self._get_status = getattr(DDS._dll_handle, f"dds_get_{kind}_incompatible_qos_status")
        self._get_changes = DDS._dll_handle.dds_get_status_changes
        self._handle = endpoint.entity._ref
        self._changes = ctypes.c_uint32()
        self._changes_at = ctypes.byref(self._changes)
        self._mask = DDSStatus.RequestedIncompatibleQos if reads else DDSStatus.OfferedIncompatibleQos
        self._text = (_SUBSCRIPTION if reads else _PUBLISHER).format(topic, "{}")
        self._warn = warn
        endpoint.entity.set_status_mask(self._mask)  # only this status wakes an executor

    def is_ready(self) -> bool:
        """Return whether an incompatible endpoint was discovered."""
        if self._endpoint.closed or self._get_changes(self._handle, self._changes_at):
            return False
        return bool(self._changes.value & self._mask)

    def take(self) -> Work | None:
        """Take the status and return the warning."""
        with self._endpoint.lock:
            if self._endpoint.closed or self._get_status(self._endpoint.entity._ref, ctypes.byref(self._status)):
                return None
            if self._status.total_count_change <= 0:
                return None
            text = self._text.format(_POLICIES.get(self._status.last_policy_id, "INVALID"))
        return lambda: self._warn(text)

    def destroy(self) -> None:
        """Do nothing: the endpoint belongs to the publisher or subscription."""
