"""Weights of decomposed layers: Tucker-2 of convolutions, truncated SVD of fully connected layers.

Tucker-2 on the two channel modes (Kim et al. 2016, "Compression of deep convolutional neural networks for fast and low
power mobile applications"): W[o, i, y, x] is approximately the sum over r and s of B[o, s] C[s, r, y, x] A[i, r]. A
becomes a 1x1 convolution before the core C, B one after it.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.models.decomposed import SvdLinear, SvdPlan, TuckerConv2d, TuckerPlan, check_ranks, empty_chain

Matrix = NDArray[np.float64]
#: Sweeps of higher-order orthogonal iteration after the HOSVD, whose result is nearly optimal already.
ITERATIONS = 1


def decomposed_layer(
    layer: nn.Module, plan: TuckerPlan | SvdPlan, *, iterations: int = ITERATIONS
) -> tuple[TuckerConv2d | SvdLinear, float]:
    """The chain that replaces a Conv2d or Linear by `plan`, with its weights, and the relative error of the weight.

    The error is ||W - W'|| / ||W|| (Frobenius), 0 if W is 0. `iterations`: sweeps of higher-order orthogonal
    iteration. The chain has the layer's device, dtype and mode; it is computed deterministically on the CPU, for a
    Conv2d in float64, for a Linear in float32 with eigenvectors in float64. Raises ValueError if the plan does not fit
    or the weights are not finite.
    """
    chain = empty_chain(layer, plan)
    assert isinstance(layer, (nn.Conv2d, nn.Linear))
    weight = layer.weight.detach()
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("its weights are not finite")
    with torch.no_grad():
        if isinstance(plan, TuckerPlan):
            assert isinstance(layer, nn.Conv2d)
            assert isinstance(chain, TuckerConv2d)
            error = _fill_tucker(chain, layer, plan, iterations)
        else:
            assert isinstance(layer, nn.Linear)
            assert isinstance(chain, SvdLinear)
            error = _fill_svd(chain, layer, plan)
    for old, new in zip(layer.parameters(), chain.parameters(), strict=False):
        new.requires_grad_(old.requires_grad)
    return chain.train(layer.training), error


def _fill_tucker(chain: TuckerConv2d, layer: nn.Conv2d, plan: TuckerPlan, iterations: int) -> float:
    in_rank, out_rank = check_ranks(layer, plan)
    groups = layer.weight.detach().double().cpu().numpy().reshape(layer.groups, -1, *layer.weight.shape[1:])
    parts = [_tucker2(group, plan, iterations) for group in groups]
    _set_weight(chain.core, np.concatenate([core for core, _, _ in parts]))
    named: dict[str, Any] = dict(chain.named_children())
    if plan.in_rank is not None:  # (r, i): A transposed
        _set_weight(named["in_factor"], np.concatenate([a.T.reshape(in_rank, -1, 1, 1) for _, _, a in parts]))
    if plan.out_rank is not None:
        _set_weight(named["out_factor"], np.concatenate([b.reshape(-1, out_rank, 1, 1) for _, b, _ in parts]))
    if layer.bias is not None:
        last: Any = named["out_factor"] if plan.out_rank is not None else chain.core
        last.bias.copy_(layer.bias)
    # With orthonormal factors, the norm of the cores is that of the approximation.
    total = float(np.sum(groups**2))
    kept = sum(float(np.sum(core**2)) for core, _, _ in parts)
    return float(np.sqrt(max(0.0, total - kept) / total)) if total else 0.0


def _tucker2(weight: Matrix, plan: TuckerPlan, iterations: int) -> tuple[Matrix, Matrix, Matrix]:
    """Core (out_rank, in_rank, kh, kw) and orthonormal factors (out, out_rank), (in, in_rank) of one group's weight.

    A mode that is not decomposed has the identity as its factor.
    """
    with optional("Tucker decomposition"):
        from tensorly.decomposition import partial_tucker

    channels = weight.shape[:2]
    wanted = (plan.out_rank, plan.in_rank)
    modes = [mode for mode in (0, 1) if wanted[mode] is not None]
    factors: list[Matrix] = [np.eye(channels[0]), np.eye(channels[1])]
    if not modes:
        return weight, factors[0], factors[1]
    # HOSVD is optimal at full rank and for a single mode.
    sweeps = iterations if any(wanted[mode] != channels[mode] for mode in modes) and len(modes) == 2 else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about ranks above that of the matrix, for which tensorly completes the factor
        (core, found), _ = partial_tucker(
            weight,
            rank=[wanted[mode] for mode in modes],
            modes=modes,
            n_iter_max=sweeps,
            svd=left_singular_vectors,
            random_state=0,
        )
    for mode, factor in zip(modes, found, strict=True):
        factors[mode] = factor
    return core, factors[0], factors[1]


def left_singular_vectors(matrix: Matrix, n_eigenvecs: int | None = None, **_: Any) -> tuple[Matrix, Matrix, Matrix]:
    """U (n, k), singular values (k,) and V (k, m) of an (n, m) matrix, k at most n: an SVD function for tensorly.

    Computed from the eigenvectors of the (n, n) Gram matrix, many times faster than a full SVD of a convolution's
    unfolding. U is orthonormal to float64 rounding, even if the matrix has a rank below k.
    """
    values, vectors = np.linalg.eigh((matrix @ matrix.T).astype(np.float64))
    count = min(n_eigenvecs or len(values), len(values))
    u = np.ascontiguousarray(vectors[:, ::-1][:, :count])
    u *= np.where(u[np.abs(u).argmax(axis=0), np.arange(count)] < 0, -1.0, 1.0)
    singular = np.sqrt(np.maximum(values[::-1][:count], 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        v = np.where(singular[:, None] > 0, (u.T @ matrix) / singular[:, None], 0.0)
    return u, singular, v


def _fill_svd(chain: SvdLinear, layer: nn.Linear, plan: SvdPlan) -> float:
    weight = layer.weight.detach().float().cpu().numpy()  # a large weight takes minutes in float64
    wide = weight.shape[0] <= weight.shape[1]
    u, _, _ = left_singular_vectors(weight if wide else weight.T, plan.rank)
    first, second = (u.T @ weight, u) if wide else (u.T, weight @ u)
    named: dict[str, Any] = dict(chain.named_children())
    _set_weight(named["in_factor"], first)
    _set_weight(named["out_factor"], second)
    if layer.bias is not None:
        named["out_factor"].bias.copy_(layer.bias)
    total = float(np.sum(weight**2))
    kept = float(np.sum(first**2 if wide else second**2))
    return float(np.sqrt(max(0.0, total - kept) / total)) if total else 0.0


def _set_weight(layer: Any, weight: Matrix) -> None:
    layer.weight.copy_(torch.from_numpy(weight).reshape(layer.weight.shape))
