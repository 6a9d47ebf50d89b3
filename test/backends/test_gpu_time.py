"""GPU time of calls, with fake clocks of GPU and CPU. On a real GPU: test/gpu."""

from __future__ import annotations

import pytest
import torch

from multi_dnn_ros.backends.gpu_time import gpu_ms

_CYCLES_PER_MS = 2_000_000


class Computer:
    """The CPU takes `launch_ms` for each call, the GPU `kernel_ms`; kernels run one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, launch_ms: float, kernel_ms: float) -> None:
        self.cpu_ms = self.gpu_ends_ms = 0.0
        self.launch_ms = launch_ms
        self.kernel_ms = kernel_ms
        self.idled: list[float] = []
        computer = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_ms = max(computer.cpu_ms, computer.gpu_ends_ms)

            def query(self) -> bool:
                return self.at_ms <= computer.cpu_ms

            def synchronize(self) -> None:
                computer.cpu_ms = max(computer.cpu_ms, self.at_ms)

            def elapsed_time(self, later: Event) -> float:
                return later.at_ms - self.at_ms

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.idle)

    def idle(self, cycles: int) -> None:
        self.idled.append(cycles / _CYCLES_PER_MS)
        self.run(self.idled[-1])

    def run(self, ms: float) -> None:
        self.gpu_ends_ms = max(self.cpu_ms, self.gpu_ends_ms) + ms

    def call(self) -> None:
        self.cpu_ms += self.launch_ms
        self.run(self.kernel_ms)


@pytest.mark.parametrize(("launch_ms", "times"), [(0.01, 1), (0.19, 1), (0.21, 2), (1.0, 3), (40.0, 5)])
def test_launch_time_is_not_counted(launch_ms: float, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    computer = Computer(monkeypatch, launch_ms, kernel_ms=0.005)
    assert gpu_ms(computer.call) == pytest.approx(0.005)
    assert len(computer.idled) == times
