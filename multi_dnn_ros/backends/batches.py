"""Prepares a DNN for several batch sizes, with one set of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like


class BatchError(ValueError):
    """The results of a batch differ from those of its images alone; the message names the image and output."""


def sizes_to_prepare(max_batch: int, device: torch.device) -> tuple[int, ...]:
    """Batch sizes to prepare for a DNN that takes up to `max_batch` images.

    On a CPU every size; on a GPU powers of two and `max_batch`, because padding costs little time there and every size
    costs memory.
    """
    sizes = range(1, max_batch + 1)
    return tuple(size for size in sizes if device.type == "cpu" or size == max_batch or size & (size - 1) == 0)


def repeat_inputs(inputs: Tensors, size: int) -> Tensors:
    """Inputs for one image, (1, ...), repeated to a batch of `size`."""
    return tuple(torch.cat([tensor] * size) for tensor in inputs)


def prepare_batches(
    backend: Backend,
    chains: Mapping[int, Sequence[nn.Module]],
    inputs: Tensors,
    device: torch.device,
    tolerance: float,
    shared: Shared | None = None,
) -> dict[int, tuple[Stage, ...]]:
    """Prepare the stages for each batch size and compare a batch's results with those of its images alone.

    chains: the same DNN cut for 1 image and for more; afterwards they share one set of weights. inputs: example inputs
    for one image. tolerance: largest error relative to the largest value of an output. Stages of different batch sizes
    must not run at the same time. Raises BatchError, and what the backend raises.
    """
    share_weights(list(chains.values()))
    shared = shared or Shared()
    ready = {
        size: backend.prepare(stages, repeat_inputs(inputs, size), device, shared) for size, stages in chains.items()
    }
    for size, stages in ready.items():
        if size > 1:
            compare_batch(ready[1], stages, repeat_inputs(inputs, size), device, tolerance)
    return ready


def share_weights(chains: Sequence[Sequence[nn.Module]]) -> None:
    """Replace tensors of the same name and value by one parameter, in place.

    Cutting shares parameters, but each cut has its own folded weights and precomputed constants. They become parameters
    because moving a module to a device keeps a shared parameter shared, but copies a shared buffer once per module.
    """
    known: dict[str, nn.Parameter] = {}
    for stage in (stage for chain in chains for stage in chain):
        tensors = (*stage.named_parameters(remove_duplicate=False), *stage.named_buffers(remove_duplicate=False))
        for name, tensor in tensors:
            first = known.get(name)
            if first is tensor:
                continue
            if first is None or not _is_same(first, tensor):
                first = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
                known.setdefault(name, first)
            owner, _, leaf = name.rpartition(".")
            part = stage.get_submodule(owner)
            delattr(part, leaf)
            part.register_parameter(leaf, first)


def _is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype is right.dtype and torch.equal(left, right)


def compare_batch(
    alone: Sequence[Stage],
    together: Sequence[Stage],
    inputs: Tensors,
    device: torch.device | None = None,
    tolerance: float = 1e-3,
) -> None:
    """Compare the results for a batch with those of its images alone. Raises BatchError.

    inputs: example inputs for the batch. device: None: the CPU.
    """
    with torch.inference_mode():
        images = tuple(tensor.to(device or "cpu") for tensor in noise_like(inputs))
        size = len(images[0])
        results = _run(together, images)
        for index, result in enumerate(results):
            if not result.ndim or len(result) != size:
                raise BatchError(f"output {index} of a batch of {size} images has shape {tuple(result.shape)}")
        for row in range(size):
            expected = _run(alone, tuple(tensor[row : row + 1] for tensor in images))
            try:
                check_agreement(tuple(result[row : row + 1] for result in results), expected, tolerance)
            except ValueError as error:
                raise BatchError(
                    f"image {row + 1} of a batch of {size} has a different result when it runs alone: {error}"
                ) from None


def _run(stages: Sequence[Stage], inputs: Tensors) -> Tensors:
    return tuple(tensor.cpu() for tensor in run_stages(stages, inputs))
