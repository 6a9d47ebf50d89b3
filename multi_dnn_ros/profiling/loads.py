"""Background load: threads on a CPU, streams on a GPU, each repeating one operation."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

import torch

from multi_dnn_ros.backends import Stage, Tensors, run_stages
from multi_dnn_ros.planning.profile import ProfileError
from multi_dnn_ros.planning.samples import LOAD_KINDS, Load
from multi_dnn_ros.planning.timing import Target

#: Load `compute`: side of the matrices (on a CPU both factors and the product fit into a core's cache), and products
#: per call.
_SIDE, _PRODUCTS = {"cpu": 256, "cuda": 2048}, {"cpu": 16, "cuda": 4}
#: Load `memory`: MiB copied per call, much more than the caches hold.
_MEBIBYTES = {"cpu": 64, "cuda": 512}
#: Maximum number of calls queued on a stream.
_MAX_QUEUED = 2
_TIMEOUT_S = 120.0
#: The prepared network of a DNN load, with its inputs.
ReadyNetwork = tuple[Sequence[Stage], Tensors]
#: Makes CUDA streams for the loads, which otherwise make their own.
MakeStream = Callable[[], "torch.cuda.Stream"]


class BackgroundLoad:
    """Context manager in which `load.level` threads, on a GPU each with its own stream, run the load.

    network: makes the network of a DNN load; called on the caller's thread, once per background thread. Entering
    returns once every background thread has completed one call. Each of them computes with one PyTorch thread; the
    caller's number of PyTorch threads does not change.
    """

    def __init__(
        self,
        load: Load,
        target: Target,
        network: Callable[[], ReadyNetwork] | None = None,
        make_stream: MakeStream | None = None,
    ) -> None:
        if load.kind not in LOAD_KINDS:
            raise ProfileError(f"load is '{load.kind}'; allowed: {', '.join(LOAD_KINDS)}")
        self._target = target
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self.calls = [0] * load.level
        works = [_work(load, target, network) for _ in range(load.level)]
        self._ready = [threading.Event() for _ in works]
        self._threads = [
            threading.Thread(target=self._repeat, args=(number, work, make_stream), name=f"load {number}", daemon=True)
            for number, work in enumerate(works)
        ]

    def __enter__(self) -> BackgroundLoad:
        threads = torch.get_num_threads()
        try:
            for thread, ready in zip(self._threads, self._ready, strict=True):
                thread.start()
                if not ready.wait(_TIMEOUT_S):
                    raise ProfileError(f"{thread.name} did not start within {_TIMEOUT_S:g} s")
        except BaseException:
            self.stop()
            raise
        finally:
            torch.set_num_threads(threads)
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self._check()

    def stop(self) -> None:
        """End the threads after their current call."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_TIMEOUT_S)

    def _check(self) -> None:
        if self._errors:
            raise ProfileError(f"a background load failed: {self._errors[0]}") from self._errors[0]

    def _repeat(self, number: int, work: Callable[[], object], make_stream: MakeStream | None) -> None:
        try:
            torch.set_num_threads(1)
            torch.get_num_threads()  # the first call initializes this thread's number of threads
            if self._target.device.type == "cuda":
                torch.cuda.set_device(self._target.device)  # the current device is per thread
                self._launch(number, work, (make_stream or torch.cuda.Stream)())
                return
            with torch.inference_mode():
                while not self._stop.is_set():
                    work()
                    self.calls[number] += 1
                    self._ready[number].set()
        except Exception as error:
            self._errors.append(error)
        finally:
            self._ready[number].set()

    def _launch(self, number: int, work: Callable[[], object], stream: torch.cuda.Stream) -> None:
        done = [torch.cuda.Event() for _ in range(_MAX_QUEUED)]
        with torch.inference_mode(), torch.cuda.stream(stream):
            while not self._stop.is_set():
                event = done[self.calls[number] % _MAX_QUEUED]
                event.synchronize()
                work()
                event.record(stream)
                self.calls[number] += 1
                self._ready[number].set()
            stream.synchronize()


def _work(load: Load, target: Target, network: Callable[[], ReadyNetwork] | None) -> Callable[[], object]:
    device = target.device
    if load.kind == "compute":
        side, products = _SIDE[device.type], _PRODUCTS[device.type]
        a, b, c = (torch.rand(side, side, device=device) for _ in range(3))
        multiply = _scripted_products()
        return lambda: multiply(a, b, c, products)
    if load.kind == "memory":
        source = torch.ones(_MEBIBYTES[device.type] << 18, device=device)
        copy = torch.empty_like(source)
        return lambda: copy.copy_(source)
    if network is None:
        raise ProfileError("a load of kind dnn needs a network to run")
    stages, inputs = network()
    return partial(run_stages, stages, inputs)


def _scripted_products() -> Callable[..., object]:
    """A loop that runs without the GIL, because many short calls from Python would contend for it."""

    def multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            torch.mm(a, b, out=c)
        return c

    with warnings.catch_warnings():
        # TorchScript is deprecated, but nothing else releases the GIL; see backends.torchscript
        warnings.simplefilter("ignore")
        scripted: Callable[..., object] = torch.jit.script(multiply)
    return scripted
