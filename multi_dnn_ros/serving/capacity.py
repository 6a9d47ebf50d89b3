"""Whether what is configured fits the device, told when configuring and on /diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multi_dnn_ros.profiling.fit import Verdict
    from multi_dnn_ros.profiling.image_sizes import Fit
    from multi_dnn_ros.schema import NodeConfig

#: Reasons why times are not predicted, each a layer or a load, that /diagnostics has.
_MOST_DOUBTS = 5


def measured_fit(config: NodeConfig, pipeline: Any) -> Fit | None:
    """Measure each DNN alone and among the others, a second or two; None unless every camera has a rate.

    With a predictor times are predicted, as far as it knows the layers. What comes of it is judged for any sizes of
    images (see SizesSeen), also in another process.
    """
    rates = {name: camera.rate_hz for name, camera in config.cameras.items()}
    if not all(rates.values()):
        return None
    from multi_dnn_ros.fit_check import fit_of

    return fit_of(config, pipeline, {}, rates, pipeline.predictor)


def capacity(config: NodeConfig, pipeline: Any) -> Verdict | None:
    """The verdict before any image has come in; None unless every camera has a rate."""
    fit = measured_fit(config, pipeline)
    return None if fit is None else fit.verdict()


def capacity_values(verdict: Verdict) -> dict[str, object]:
    """As /diagnostics has them."""
    values: dict[str, object] = {"workers needed (%)": f"{100 * verdict.utilization:.1f}"}
    values.update({f"{dnn} needs (% of a worker)": f"{100 * need:.1f}" for dnn, need in verdict.needs.items()})
    values.update({f"{dnn} at most (Hz)": f"{hz:.2f}" for dnn, hz in verdict.most_hz.items()})
    values.update(
        {f"decoding {camera} (% of a core)": f"{100 * need:.1f}" for camera, need in verdict.decoding.items()}
    )
    values.update({f"advice {number}": text for number, text in enumerate(verdict.advice, start=1)})
    doubts = enumerate(verdict.doubts[:_MOST_DOUBTS], start=1)
    values.update({f"not predicted {number}": text for number, text in doubts})
    return values
