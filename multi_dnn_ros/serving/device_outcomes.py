"""Passes what the engine processes of one device report to the accounts; for DNNs with several devices in order."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.frame_spreading import FrameSpreading
from multi_dnn_ros.serving.result_order import ResultOrder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpreadDnns:
    """DNNs with several devices. devices: by DNN, their names."""

    devices: Mapping[str, tuple[str, ...]]
    spreading: FrameSpreading
    order: ResultOrder


class DeviceOutcomes:
    """The :class:`multi_dnn_ros.serving.outcomes.Outcomes` of the processes of one device."""

    def __init__(self, device: str, accounts: Accounts, spread: SpreadDnns | None) -> None:
        self._device = device
        self._accounts = accounts
        self._spread = spread

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None:
        spread = self._spread_of(dnn)
        if spread is None:
            self._accounts.result(number, dnn, output, timing)
            return
        spread.spreading.answered(number, dnn, self._device, timing)
        spread.order.result(number, dnn, output, timing)

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None:
        spread = self._spread_of(dnn)
        if spread is None:
            self._accounts.drop(number, dnn, reason, message)
            return
        spread.spreading.answered(number, dnn, self._device, None)
        spread.order.drop(number, dnn, reason, message)

    def failure(self, failure: Failure) -> None:
        """A DNN with several devices is disabled only if it is disabled on all of them."""
        spread = self._spread_of(failure.dnn)
        if spread is not None and failure.disabled:
            everywhere, retry_s = spread.spreading.disable(failure.dnn, self._device, failure.retry_s)
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
        spread = self._spread_of(dnn)
        if spread is not None:
            spread.spreading.enable(dnn, self._device)
        self._accounts.enabled(dnn)

    def _spread_of(self, dnn: str) -> SpreadDnns | None:
        spread = self._spread
        return spread if spread is not None and dnn in spread.devices else None
