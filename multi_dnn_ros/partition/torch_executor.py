"""The executor for units on PyTorch's devices with the backends of this package."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.backends import Stage, run_stages
from multi_dnn_ros.backends.green_contexts import make_stream, sms_problem
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.common.torch_threads import torch_threads
from multi_dnn_ros.partition.executor import Array, NetworkRequest, OutputForm, RunTimes
from multi_dnn_ros.partition.gpu_wait import wait_for
from multi_dnn_ros.pipeline.choices import (
    ConfigError,
    automatic_providers,
    check_backend,
    choose_backend,
    choose_device,
)
from multi_dnn_ros.planning.batch_units import Unit, UnitError, check_installation
from multi_dnn_ros.planning.timing import Target, prepared
from multi_dnn_ros.profiling.network import load
from multi_dnn_ros.serving.pinned import PinnedImages


class TorchExecutor:
    """See :class:`multi_dnn_ros.partition.executor.Executor`.

    For a CPU unit, sets PyTorch's number of threads, for the whole process.
    """

    def __init__(self, unit: Unit, network: NetworkRequest, precision: str) -> None:
        """Raises UnitError, ModelError."""
        self._target = _target(unit, precision)
        if self._target.device.type == "cpu":
            torch.set_num_threads(_threads(unit))
        self._device = _name(unit, self._target)
        self._network = load(network.model, weights=network.weights, num_classes=network.num_classes, size=network.size)
        self._parameters = sum(tensor.numel() for tensor in self._network.module.parameters())
        self._chain: tuple[Stage, ...] = ()
        self._pinned: list[PinnedImages] = []
        # The memory that is registered. If it were unmapped before, CUDA could not map anything else at its address.
        self._attached: tuple[Array, ...] = ()
        # By number of images, the last times on the GPU: one of them may be that of a batch that had to wait.
        self._gpu_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=2))
        self._stream = (
            make_stream(self._target.device, self._target.sms) if self._target.device.type == "cuda" else None
        )

    @staticmethod
    def identity(unit: Unit, precision: str) -> str:
        """The value of `device` for an executor of this unit. Raises UnitError."""
        target = _target(unit, precision)
        with torch_threads(_threads(unit) if target.device.type == "cpu" else torch.get_num_threads()):
            return _name(unit, target)

    @property
    def device(self) -> str:
        return self._device

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self._network.shape[1:]
        return channels, height, width

    @property
    def image_dtype(self) -> str:
        return _image_dtype(self._target)

    @property
    def parameters(self) -> int:
        return self._parameters

    @property
    def tolerance(self) -> float:
        return PRECISIONS[self._target.precision].tolerance(self._target.device)

    def prepare(self, batch: int) -> tuple[OutputForm, ...]:
        """Raises UnitError if an output of the network does not have the batch as its first axis."""
        self._chain = ()
        if self._stream is not None:
            torch.cuda.empty_cache()
        images = torch.rand(batch, *self.shape, generator=torch.Generator().manual_seed(0))
        chain = prepared(self._network.module, (images,), self._target)
        with self._computing():
            outputs = _through(chain, images.to(self._target.device))
        for index, output in enumerate(outputs):
            if not output.ndim or len(output) != batch:
                raise UnitError(
                    f"{self._network.name} cannot be split by images: output {index} for {batch} images has the shape "
                    f"{tuple(output.shape)}; the first axis must be {batch}"
                )
        self._chain = chain
        return tuple(OutputForm(tuple(each.shape[1:]), str(each.dtype).removeprefix("torch.")) for each in outputs)

    def attach(self, inputs: Array, outputs: tuple[Array, ...]) -> None:
        for pinned in self._pinned:
            pinned.close()
        self._pinned = []
        self._attached = ()
        if self._stream is None:
            return
        self._attached = (inputs, *outputs)
        for array in self._attached:
            pinned = PinnedImages(self._target.device)
            pinned.pin(array.reshape(-1).view(np.uint8))
            self._pinned.append(pinned)

    def run(self, images: Array, outputs: tuple[Array, ...]) -> RunTimes:
        if self._stream is not None:
            # float: what the prepared network takes
            return self._on_gpu(images, lambda image: _through(self._chain, image.float()), outputs)
        with torch.inference_mode():
            began = time.perf_counter()
            results = _through(self._chain, torch.from_numpy(images))
            computed = time.perf_counter()
            for output, result in zip(outputs, results, strict=True):
                torch.from_numpy(output).copy_(result)
            ended = time.perf_counter()
        return RunTimes(0.0, 1e3 * (computed - began), 1e3 * (ended - computed))

    def transfer(self, images: Array) -> RunTimes:
        received = np.empty_like(images)
        if self._stream is not None:
            return self._on_gpu(images, lambda image: (image,), (received,))
        began = time.perf_counter()
        copied = torch.from_numpy(images).clone()
        read = time.perf_counter()
        torch.from_numpy(received).copy_(copied)
        return RunTimes(1e3 * (read - began), 0.0, 1e3 * (time.perf_counter() - read))

    def _on_gpu(self, images: Array, work: Any, outputs: tuple[Array, ...]) -> RunTimes:
        began = time.perf_counter()
        with self._computing():
            marks = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(4)]
            marks[0].record()
            image = torch.from_numpy(images).to(self._target.device, non_blocking=True)
            marks[1].record()
            results = work(image)
            marks[2].record()
            for output, result in zip(outputs, results, strict=True):
                torch.from_numpy(output).copy_(result, non_blocking=True)
            marks[3].record()
            recent_s = self._gpu_s[len(images)]
            wait_for(marks[3], began + (min(recent_s) if len(recent_s) == recent_s.maxlen else 0.0))
        elapsed_s = time.perf_counter() - began
        gaps = [before.elapsed_time(after) for before, after in itertools.pairwise(marks)]
        recent_s.append(sum(gaps) / 1e3)  # not the elapsed time, which contains oversleeping
        return RunTimes(gaps[0], gaps[1], gaps[2], max(0.0, 1e3 * elapsed_s - sum(gaps)))

    @contextmanager
    def _computing(self) -> Iterator[None]:
        if self._stream is None:
            with torch.inference_mode():
                yield
            return
        torch.cuda.set_device(self._target.device)  # per thread
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            yield


def _target(unit: Unit, precision: str) -> Target:
    """Device, backend and precision of the unit. Raises UnitError, which names the unit and what is allowed."""
    check_installation(unit)
    if unit.backend != "auto" and unit.backend not in BACKENDS.names():
        raise UnitError(
            f"unit '{unit.name}': backend '{unit.backend}' is not known; allowed: {', '.join(BACKENDS.names())}"
        )
    try:
        device = choose_device(unit.device, "its device is")
        backend = check_backend(
            unit.backend, device, precision, backend_from="its backend", precision_from="the precision"
        )
    except ConfigError as error:
        raise UnitError(f"unit '{unit.name}': {error}") from None
    if unit.sms:
        problem = sms_problem(device, unit.sms)
        if problem:
            raise UnitError(f"unit '{unit.name}': {problem}")
    if device.type == "cpu" and unit.threads > cpu_count():
        raise UnitError(f"unit '{unit.name}' has {unit.threads} threads; this process may use {cpu_count()} cores")

    named: tuple[str, ...] = dict(unit.options).get("providers", ())
    providers = named or automatic_providers(unit.backend, device)

    def make_backend() -> Any:
        return choose_backend(
            backend, device, precision, dnn=f"the network on {unit.name}", providers=providers, required=bool(named),
        )  # fmt: skip

    return Target(device, backend, make_backend, precision, sms=unit.sms)


def _name(unit: Unit, target: Target) -> str:
    providers = dict(unit.options).get("providers", ())
    images = _image_dtype(target)
    return "; ".join((target.name(), *providers, *([] if images == "float32" else [f"images in {images}"])))


def _image_dtype(target: Target) -> str:
    """Half as many bytes for a network in fp16: copies of four GPUs at once are limited by the host's memory."""
    return "float16" if target.device.type == "cuda" and target.dtype is torch.float16 else "float32"


def _threads(unit: Unit) -> int:
    return unit.threads or cpu_count()


def _through(chain: tuple[Stage, ...], image: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return run_stages(chain, (image,))
