"""Predicts the time of a network from those of its layers; branches that run at the same time count once."""

from __future__ import annotations

from collections.abc import Sequence

from multi_dnn_ros.graph.cut import cut_graph
from multi_dnn_ros.graph.stream_plan import time_saved_s
from multi_dnn_ros.planning.measure import Traced
from multi_dnn_ros.planning.profile import LayerShape, node_costs


def network_ms(traced: Traced, layers: Sequence[LayerShape], ms: Sequence[float], streams: Sequence[int] = ()) -> float:
    """Milliseconds of one inference. ms: predicted times of the network's `layers`.

    streams: for each job, the number of streams on which its branches run at the same time; empty: one each. A job
    takes as long as its operations on these streams, and at least as long as its critical path.
    """
    total_ms = sum(ms)
    if max(streams, default=1) == 1:
        return total_ms
    costs = node_costs(zip(layers, ms, strict=True), "the prediction")
    jobs = cut_graph(traced.graph_module, len(streams), costs=costs)  # may be fewer, in a network of few layers
    saved_s = sum(time_saved_s(job.graph, costs, count) for job, count in zip(jobs, streams, strict=False))
    return total_ms - saved_s * 1e3
