"""A model swap: the settings of DNNs change while they are served (docs/isolation.md).

Processes with the new settings are prepared while the previous ones serve. When they are ready on all devices, the
caller commits the swap, and they take over between two frames.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from multi_dnn_ros.serving.device_swap import DeviceSwap
from multi_dnn_ros.serving.host import Changes, SwapPhase, SwapState
from multi_dnn_ros.serving.supervised_processes import SupervisedProcesses


class ModelSwap:
    """A :class:`multi_dnn_ros.serving.host.Swap`, which begins when the object is created. Thread-safe.

    devices: the processes of each device; devices without a changed DNN are not used. changes: new values. notify:
    called in any thread when `state` may have changed; must not block or call this object.
    gaps_ms: for each DNN that was taken over, time between the last result with the previous settings and the first one
    with the new settings.
    """

    def __init__(self, devices: Sequence[SupervisedProcesses], changes: Changes, notify: Callable[[], None]) -> None:
        self.gaps_ms: dict[str, float] = {}
        self._notify = notify
        self._devices = [device for device in devices if not set(device.swap.dnns).isdisjoint(changes)]
        with self._locked():
            self._numbers = [device.swap.begin(changes, notify, self._on_gap) for device in self._devices]

    def state(self) -> SwapState:
        """The state on all devices together."""
        with self._locked():
            swaps = self._swaps()
            if len(swaps) < len(self._devices):
                return SwapState(SwapPhase.FAILED, "a later swap has replaced it")
            failures = [swap.failure for swap in swaps if swap.failure]
            if failures:
                return SwapState(SwapPhase.FAILED, failures[0])
            waiting = [swap for swap in swaps if not swap.is_prepared]
            if waiting:
                return SwapState(SwapPhase.PREPARING, progress=waiting[0].progress)
            dnns = {name: dnn for swap in swaps for part in swap.descriptions for name, dnn in part.dnns.items()}
            return SwapState(SwapPhase.PREPARED, dnns=dnns)

    def commit(self) -> bool:
        """Let the new processes take over on all devices together; False: the swap is not, or no longer, prepared."""
        with self._locked():
            swaps = self._swaps()
            if len(swaps) < len(self._devices) or not all(swap.is_prepared for swap in swaps):
                return False
            for swap in swaps:
                swap.commit()
            return True

    def cancel(self, cause: str) -> None:
        """End the processes that are being prepared. No effect after :meth:`commit`."""
        with self._locked():
            for swap in self._swaps():
                swap.cancel(cause)

    def _swaps(self) -> list[DeviceSwap]:
        """This swap on each device, except devices with a later swap; the caller holds the locks."""
        return [
            device.swap
            for device, number in zip(self._devices, self._numbers, strict=True)
            if device.swap.number == number
        ]

    def _locked(self) -> contextlib.ExitStack:
        """Hold the locks of all devices, so that no event of a process is handled meanwhile."""
        with contextlib.ExitStack() as stack:
            for device in self._devices:
                stack.enter_context(device.lock)
            return stack.pop_all()

    def _on_gap(self, dnn: str, gap_ms: float) -> None:
        """With several devices, keep the shortest gap, because the other devices have served meanwhile."""
        self.gaps_ms[dnn] = min(gap_ms, self.gaps_ms.get(dnn, gap_ms))
        self._notify()
