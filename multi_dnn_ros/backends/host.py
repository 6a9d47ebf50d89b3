"""The CPU in processes that may not have imported PyTorch: its device, its threads, and which devices there are."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common.resources import cpu_count

if TYPE_CHECKING:
    import torch

#: One of these exists where a driver of a GPU is loaded: NVIDIA's, of a Jetson, AMD's, in WSL.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/kfd", "/dev/dxg")

_threads = 0


class Host:
    """The CPU, as `torch.device("cpu")`, to which it is equal."""

    type = "cpu"
    index = None

    def __str__(self) -> str:
        return "cpu"

    def __eq__(self, other: object) -> bool:
        return str(other) == "cpu"

    def __hash__(self) -> int:
        return hash("cpu")


#: A device for functions that ask for its type and name only.
CPU: Any = Host()


def as_torch(device: Any) -> torch.device:
    """The device as PyTorch's."""
    import torch

    return torch.device(str(device))


def has_gpu_driver() -> bool:
    """Whether a driver of a GPU is loaded and PyTorch is installed."""
    return any(Path(driver).exists() for driver in _DRIVERS) and importlib.util.find_spec("torch") is not None


def gpu_count() -> int:
    """Number of GPUs that PyTorch can use. PyTorch is imported only if it is installed and a driver is loaded."""
    if not has_gpu_driver():
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def set_threads(count: int) -> None:
    """Set the number of threads of each operation on the CPU, in sessions that are made later and in PyTorch."""
    global _threads
    _threads = count
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def threads() -> int:
    """Number of threads of each operation on the CPU."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    return _threads or cpu_count()


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """PyTorch's inference mode, if PyTorch is imported."""
    with sys.modules["torch"].inference_mode() if "torch" in sys.modules else contextlib.nullcontext():
        yield
