"""Compares the results of a stage before and after it was cast, compiled or captured."""

from __future__ import annotations

import torch

from multi_dnn_ros.backends import Tensors

#: Added to the scale of a result, so that results close to zero are compared by absolute error.
_SCALE_OFFSET = 0.1


def noise_like(inputs: Tensors) -> Tensors:
    """Tensors like `inputs`; floating-point ones hold standard normal noise, the same in every call.

    Example inputs are zeros, with which many wrong layers would still give the right result.
    """
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for tensor in inputs
    )


def check_agreement(results: Tensors, expected: Tensors, tolerance: float) -> None:
    """Raise ValueError unless `results` agree with `expected` in number, shape, dtype and, within `tolerance`, value.

    tolerance: largest error relative to the largest value of the same tensor. Values that are not finite must be equal.
    The message names the first tensor that differs, its error and the tolerance.
    """
    if len(results) != len(expected):
        raise ValueError(f"{len(results)} results instead of {len(expected)}")
    for index, (result, right) in enumerate(zip(results, expected, strict=True)):
        if (result.shape, result.dtype) != (right.shape, right.dtype):
            raise ValueError(
                f"result {index} is {result.dtype} {tuple(result.shape)} instead of {right.dtype} {tuple(right.shape)}"
            )
        found, wanted = result.detach().cpu().double(), right.detach().cpu().double()
        finite = wanted.isfinite()
        if not torch.equal(finite, found.isfinite()):
            raise ValueError(f"result {index}: the values that are not finite differ")
        if not bool(finite.all()):  # masked copies take longer than the comparison itself
            if not torch.equal(found[~finite].nan_to_num(), wanted[~finite].nan_to_num()):
                raise ValueError(f"result {index}: the values that are not finite differ")
            found, wanted = found[finite], wanted[finite]
        if not wanted.numel():
            continue
        scale = float(wanted.abs().max())
        error = float((found - wanted).abs().max())
        if error > tolerance * (_SCALE_OFFSET + scale):
            raise ValueError(f"result {index} is off by {error:.3g} on a scale of {scale:.3g}, allowed: {tolerance:g}")
