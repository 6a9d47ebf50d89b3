"""The network of a job."""

from __future__ import annotations

import torch

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.models.registry import source_of
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.training.trainable import Trainable, make_trainable


def load_trainable(job: FleetJob) -> Trainable:
    """The network that the job trains; random weights follow from its seed. Raises ModelError."""
    torch.manual_seed(job.seed)
    found = source_of(job.model)
    built = found is not None and found.takes_weights
    source = load_network(
        job.model, weights=job.weights if built else "default", num_classes=job.num_classes if built else 0,
        size=job.size,
    )  # fmt: skip
    return make_trainable(
        source, job.model, size=job.size, decoder=job.decoder, labels=job.labels, smoothing=job.label_smoothing
    )
