"""Whether what is configured fits the device, told when configuring and on /diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from multi_dnn_ros.profiling.fit import Verdict
    from multi_dnn_ros.schema import NodeConfig

_HEIGHT, _WIDTH = 480, 640
#: Reasons why times are not predicted, each a layer or a load, that /diagnostics has.
_MOST_DOUBTS = 5


def capacity(config: NodeConfig, pipeline: Any) -> Verdict | None:
    """Measure each DNN alone and among the others, a second or two, and judge; None unless every camera has a rate.

    With a predictor times are predicted, as far as it knows the layers.
    """
    rates = {name: camera.rate_hz for name, camera in config.cameras.items()}
    if not all(rates.values()):
        return None
    from multi_dnn_ros.fit_check import fit_of

    return fit_of(config, pipeline, np.zeros((_HEIGHT, _WIDTH, 3), dtype=np.uint8), rates, pipeline.predictor)


def capacity_values(verdict: Verdict) -> dict[str, object]:
    """As /diagnostics has them."""
    values: dict[str, object] = {"workers needed (%)": f"{100 * verdict.utilization:.1f}"}
    values.update({f"{dnn} needs (% of a worker)": f"{100 * need:.1f}" for dnn, need in verdict.needs.items()})
    values.update({f"{dnn} at most (Hz)": f"{hz:.2f}" for dnn, hz in verdict.most_hz.items()})
    values.update({f"advice {number}": text for number, text in enumerate(verdict.advice, start=1)})
    doubts = enumerate(verdict.doubts[:_MOST_DOUBTS], start=1)
    values.update({f"not predicted {number}": text for number, text in doubts})
    return values
