"""Operations that decoders need on NumPy arrays on the host and on PyTorch tensors on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
#: A numpy array, or a torch.Tensor.
Values = Any


def to_array(output: Values) -> Floats:
    """An array, or a tensor on the CPU, as a float32 array; it shares memory where it can."""
    return np.asarray(output.float().numpy() if hasattr(output, "float") else output, np.float32)


def joined(parts: Sequence[Values]) -> Values:
    """Concatenate along the first axis."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(list(parts))


def exp(values: Values) -> Values:
    """The exponential of each value."""
    return np.exp(values) if isinstance(values, np.ndarray) else values.exp()


def log(values: Values) -> Values:
    """The logarithm of each value."""
    return np.log(values) if isinstance(values, np.ndarray) else values.log()


def sigmoid(values: Values) -> Values:
    """1 / (1 + exp(-x)) of each value, without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * values)) if isinstance(values, np.ndarray) else values.sigmoid()


def largest(values: Values, axis: int) -> Values:
    """The maximum over an axis."""
    return values.max(axis) if isinstance(values, np.ndarray) else values.amax(axis)


def logsumexp(values: Values) -> Values:
    """log(sum(exp(values))) over the first axis."""
    top = largest(values, 0)
    return top + log(exp(values - top).sum(0))


def softmax(rows: Values) -> Values:
    """Softmax over the second axis of (N, K)."""
    powers = exp(rows - largest(rows, 1)[:, None])
    return powers / powers.sum(1)[:, None]
