"""Weights of decomposed layers: Tucker-2 of convolutions, truncated SVD of fully connected layers.

Tucker-2 on the two channel modes (Kim et al. 2016, "Compression of deep convolutional neural networks for fast and low
power mobile applications"): W[o, i, y, x] is approximately the sum over r and s of B[o, s] C[s, r, y, x] A[i, r]. A
becomes a 1x1 convolution before the core C, B one after it.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.compression.calibration import Matrix, Moments, square_root
from multi_dnn_ros.models.decomposed import SvdLinear, SvdPlan, TuckerConv2d, TuckerPlan, check_ranks, empty_chain

#: Sweeps of higher-order orthogonal iteration after the HOSVD, whose result is nearly optimal already.
_SWEEPS = 1


def decomposed_layer(
    layer: Any, plan: TuckerPlan | SvdPlan, moments: Moments | None = None
) -> tuple[TuckerConv2d | SvdLinear, float]:
    """The chain that replaces a Conv2d or Linear by `plan`, with its weights, and its relative error.

    Without `moments`, the error ||W - W'|| / ||W|| (Frobenius) is minimized; 0 if W is 0. With the layer's moments, it
    is the error of the layer's output, sqrt(E ||y - y'||^2 / E ||y||^2): exact for a plan without input rank, otherwise
    an estimate from the moments of single channels, after which fit_cores() should follow. The chain has the layer's
    device, dtype and mode; it is computed deterministically on the CPU, for a Conv2d in float64, for a Linear in
    float32 with eigenvectors in float64. Raises ValueError if the plan does not fit or the weights are not finite.
    """
    chain = empty_chain(layer, plan)
    if not bool(torch.isfinite(layer.weight).all()):
        raise ValueError("its weights are not finite")
    fill: Any = _fill_tucker if isinstance(plan, TuckerPlan) else _fill_svd
    with torch.no_grad():
        error: float = fill(chain, layer, plan, moments)
    for old, new in zip(layer.parameters(), chain.parameters(), strict=False):
        new.requires_grad_(old.requires_grad)
    return chain.train(layer.training), error


def _fill_tucker(chain: TuckerConv2d, layer: nn.Conv2d, plan: TuckerPlan, moments: Moments | None) -> float:
    in_rank, out_rank = check_ranks(layer, plan)
    groups = layer.weight.detach().double().cpu().numpy().reshape(layer.groups, -1, *layer.weight.shape[1:])
    if moments is None:
        parts = [_tucker2(group, plan) for group in groups]
        total = float(np.sum(groups**2))
    else:
        parts = [
            _tucker2_of_outputs(*group, plan) for group in zip(groups, moments.inputs, moments.outputs, strict=True)
        ]
        total = float(np.trace(moments.outputs, axis1=1, axis2=2).sum())
    _set_weight(chain.core, np.concatenate([part.core for part in parts]))
    named: dict[str, Any] = dict(chain.named_children())
    if plan.in_rank is not None:
        _set_weight(named["in_factor"], np.concatenate([part.first.reshape(in_rank, -1, 1, 1) for part in parts]))
    if plan.out_rank is not None:
        _set_weight(named["out_factor"], np.concatenate([part.last.reshape(-1, out_rank, 1, 1) for part in parts]))
    if layer.bias is not None:
        bearer: Any = named["out_factor"] if plan.out_rank is not None else chain.core
        bearer.bias.copy_(layer.bias)
    kept = sum(part.kept for part in parts)
    return float(np.sqrt(max(0.0, total - kept) / total)) if total else 0.0


class _Parts(NamedTuple):
    """One group: core (s, r, kh, kw), first (r, in) and last (out, s, orthonormal columns) factor; kept: what the
    approximation keeps of the squared norm.
    """

    core: Matrix
    first: Matrix
    last: Matrix
    kept: float


def _tucker2_of_outputs(weight: Matrix, inputs: Matrix, outputs: Matrix, plan: TuckerPlan) -> _Parts:
    """Minimizes the error of the output: the output factor holds the principal directions of the output, the input
    factor those of the input as the weight sees it.

    weight: (out, in, kh, kw); inputs (in, in), outputs (out, out): second moments.
    """
    last = np.eye(len(outputs)) if plan.out_rank is None else left_singular_vectors(outputs, plan.out_rank)[0]
    kept = float(np.sum(last * (outputs @ last)))
    core = np.tensordot(last.T, weight, 1)
    if plan.in_rank is None:
        return _Parts(core, np.eye(len(inputs)), last, kept)
    root, inverse = square_root(inputs)
    whitened = np.einsum("sikl,ij->sjkl", core, root)
    found = _tucker2(whitened, TuckerPlan(in_rank=plan.in_rank, out_rank=None))
    # In proportion, because the moments of single channels do not give the energy of the output.
    return _Parts(found.core, found.first @ inverse, last, kept * found.kept / max(1e-300, float(np.sum(whitened**2))))


def _tucker2(weight: Matrix, plan: TuckerPlan) -> _Parts:
    """Minimizes the error of the weight (out, in, kh, kw) of one group. Both factors are orthonormal; a mode that is
    not decomposed has the identity as its factor.
    """
    with optional("Tucker decomposition"):
        from tensorly.decomposition import partial_tucker

    channels = weight.shape[:2]
    wanted = (plan.out_rank, plan.in_rank)
    modes = [mode for mode in (0, 1) if wanted[mode] is not None]
    factors: list[Matrix] = [np.eye(channels[0]), np.eye(channels[1])]
    if not modes:
        return _Parts(weight, factors[1], factors[0], float(np.sum(weight**2)))
    # HOSVD is optimal at full rank and for a single mode.
    sweeps = _SWEEPS if any(wanted[mode] != channels[mode] for mode in modes) and len(modes) == 2 else 0
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
    return _Parts(core, factors[1].T, factors[0], float(np.sum(core**2)))


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


def _fill_svd(chain: SvdLinear, layer: nn.Linear, plan: SvdPlan, moments: Moments | None) -> float:
    weight = layer.weight.detach().float().cpu().numpy()  # a large weight takes minutes in float64
    named: dict[str, Any] = dict(chain.named_children())
    if moments is not None:
        # The projection on the principal directions of the output is the best approximation of this rank.
        u = left_singular_vectors(moments.outputs[0], plan.rank)[0]
        first, last = u.T @ weight, u
        total = float(np.trace(moments.outputs[0]))
        kept = float(np.sum(u * (moments.outputs[0] @ u)))
    else:
        wide = weight.shape[0] <= weight.shape[1]
        u = left_singular_vectors(weight if wide else weight.T, plan.rank)[0]
        first, last = (u.T @ weight, u) if wide else (u.T, weight @ u)
        total = float(np.sum(weight**2))
        kept = float(np.sum(first**2 if wide else last**2))
    _set_weight(named["in_factor"], first)
    _set_weight(named["out_factor"], last)
    if layer.bias is not None:
        named["out_factor"].bias.copy_(layer.bias)
    return float(np.sqrt(max(0.0, total - kept) / total)) if total else 0.0


def _set_weight(layer: Any, weight: Matrix) -> None:
    layer.weight.copy_(torch.from_numpy(weight).reshape(layer.weight.shape))
