"""Passes the reports of one device's engine processes to the accounts; in frame order for DNNs with several devices."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.frame_dispatcher import FrameDispatcher
from multi_dnn_ros.serving.result_order import ResultOrder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MultiDeviceDnns:
    """DNNs with several devices. devices: names of the devices, by DNN."""

    devices: Mapping[str, tuple[str, ...]]
    dispatcher: FrameDispatcher
    order: ResultOrder


class DeviceOutcomes:
    """The :class:`multi_dnn_ros.serving.outcomes.Outcomes` of the processes of one device."""

    def __init__(self, device: str, accounts: Accounts, multi_device: MultiDeviceDnns | None) -> None:
        self._device = device
        self._accounts = accounts
        self._multi_device = multi_device

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None:
        multi_device = self._multi_device_of(dnn)
        if multi_device is None:
            self._accounts.result(number, dnn, output, timing)
            return
        multi_device.dispatcher.answered(number, dnn, self._device, timing)
        multi_device.order.result(number, dnn, output, timing)

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None:
        multi_device = self._multi_device_of(dnn)
        if multi_device is None:
            self._accounts.drop(number, dnn, reason, message)
            return
        multi_device.dispatcher.answered(number, dnn, self._device, None)
        multi_device.order.drop(number, dnn, reason, message)

    def failure(self, failure: Failure) -> None:
        """A DNN with several devices is disabled only if it is disabled on all of them."""
        multi_device = self._multi_device_of(failure.dnn)
        if multi_device is not None and failure.disabled:
            everywhere, retry_s = multi_device.dispatcher.disable(failure.dnn, self._device, failure.retry_s)
            if everywhere:
                failure = replace(failure, retry_s=retry_s)
            else:
                log.error(
                    "DNN %s is disabled on %s; it continues on its other devices: %s",
                    failure.dnn,
                    self._device,
                    failure.reason or failure.message,
                )
                failure = replace(failure, disabled=False)
        self._accounts.failure(failure)

    def enabled(self, dnn: str) -> None:
        multi_device = self._multi_device_of(dnn)
        if multi_device is not None:
            multi_device.dispatcher.enable(dnn, self._device)
        self._accounts.enabled(dnn)

    def _multi_device_of(self, dnn: str) -> MultiDeviceDnns | None:
        multi_device = self._multi_device
        return multi_device if multi_device is not None and dnn in multi_device.devices else None
