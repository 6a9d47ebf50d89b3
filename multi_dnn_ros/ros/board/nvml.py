"""NVIDIA GPUs through NVML, if the package nvidia-ml-py is installed."""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.common.extras import MissingExtra, optional
from multi_dnn_ros.ros.board.sensors import Faults, Reading, Source, Value

#: Bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean heat or a power failure, and their text. The ordinary
#: power cap (4) is left out, because a busy GPU always runs at it.
_THROTTLED = {0x08: "hardware slowdown", 0x20: "too hot (driver)", 0x40: "too hot (hardware)", 0x80: "power brake"}
_TEMPERATURE_GPU, _THRESHOLD_SLOWDOWN, _CLOCK_SM = 0, 1, 1


class NvmlGpus:
    """All GPUs that the driver shows. nvml: the module pynvml, initialized."""

    def __init__(self, nvml: Any, faults: Faults) -> None:
        self._nvml = nvml
        self._faults = faults
        self._gpus = {f"GPU_{n}": nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())}

    def read(self) -> Reading:
        """Power, temperature, clock and throttling of each GPU."""
        nvml, power, heat, clocks, throttled = self._nvml, {}, {}, {}, {}
        for name, gpu in self._gpus.items():
            watts = self._call(f"{name} power", nvml.nvmlDeviceGetPowerUsage, gpu)
            if watts is not None:
                limit = self._call(f"{name} power limit", nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
                power[name] = Value(watts * 1e-3, None if not limit else limit * 1e-3, cap=True)
            degrees = self._call(f"{name} temperature", nvml.nvmlDeviceGetTemperature, gpu, _TEMPERATURE_GPU)
            if degrees is not None:
                threshold = self._call(
                    f"{name} slowdown temperature", nvml.nvmlDeviceGetTemperatureThreshold, gpu, _THRESHOLD_SLOWDOWN
                )
                heat[name] = Value(degrees, threshold)
            clock = self._call(f"{name} clock", nvml.nvmlDeviceGetClockInfo, gpu, _CLOCK_SM)
            if clock is not None:
                max_mhz = self._call(f"{name} highest clock", nvml.nvmlDeviceGetMaxClockInfo, gpu, _CLOCK_SM)
                clocks[name] = Value(clock, max_mhz)
            reasons = self._call(f"{name} throttle reasons", nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu)
            texts = [text for bit, text in _THROTTLED.items() if int(reasons or 0) & bit]
            if texts:
                throttled[name] = ", ".join(texts)
        return Reading(power_w=power, temperatures_c=heat, clocks_mhz=clocks, throttled=throttled)

    def _call(self, sensor: str, function: Any, *arguments: Any) -> float | None:
        """The result; None, after a report to `faults`, if the GPU does not support the query or is gone."""
        try:
            return float(function(*arguments))
        except Exception as error:  # NVMLError has a class for each code
            self._faults.add(sensor, error)
            return None


def nvml_sources(faults: Faults) -> list[Source]:
    """The GPUs; empty without the package, the driver or a GPU, which is not reported as a fault."""
    try:
        with optional("the power of NVIDIA GPUs"):
            import pynvml  # slow on a machine with many GPUs
    except MissingExtra:
        return []
    try:
        pynvml.nvmlInit()
        return [NvmlGpus(pynvml, faults)]
    except pynvml.NVMLError:  # no driver, or no GPU
        return []
