"""The training of one job in one process: steps on its tenths of every batch, and its state."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from multi_dnn_ros import __version__
from multi_dnn_ros.common.extras import require
from multi_dnn_ros.common.reporting import provenance
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.networks import load_trainable
from multi_dnn_ros.fleet.shares import Shares
from multi_dnn_ros.models.artifact import Description, is_built_from_a_name, save_artifact, suffix_of
from multi_dnn_ros.training import checkpoint as checkpoints
from multi_dnn_ros.training.batch_norm import with_global_batch_norm
from multi_dnn_ros.training.batches import Batch
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.checks import CheckedData, check_data
from multi_dnn_ros.training.data import DataRequest, open_data
from multi_dnn_ros.training.loop import Schedule, make_optimizer, set_rate, set_training
from multi_dnn_ros.training.precision import autocast
from multi_dnn_ros.training.retrain import check_labels
from multi_dnn_ros.training.setup import make_batches, score_rows
from multi_dnn_ros.training.trainable import Trainable

_CLIP = 10.0


def read_data(job: FleetJob, network: Trainable) -> CheckedData:
    """The checked data set of a job, for its network. Raises DatasetError, TrainingError."""
    opened = open_data(job.data, DataRequest(network.task, network.framing, network.labels, job.scenes))
    check_labels(network, opened)
    return check_data(opened, progress=False)


class JobTraining:
    """done: steps so far. total: all steps. losses: loss of the global batch, by step. data: the checked data set."""

    def __init__(
        self,
        job: FleetJob,
        device: torch.device,
        data: CheckedData | None = None,
        trainable: Trainable | None = None,
    ) -> None:
        """Loads the network and the data unless they are passed. trainable: the network of the job, not yet trained.

        Raises TrainingError, ModelError, DatasetError; MissingExtra if the scores at the end need a library that is not
        installed.
        """
        self.job = job
        self.device = device
        self._trainable = trainable if trainable is not None else load_trainable(job)
        if self._trainable.loss is None:
            raise TrainingError(f"the outputs of {job.model} have no loss; the fleet trains without a teacher")
        if self._trainable.task == "boxes":
            require("average precision", "pycocotools")
        self.data = data if data is not None else read_data(job, self._trainable)
        self.network = self._trainable.network.to(device)
        self._dtype = torch.float64 if job.precision == "fp64" else torch.float32
        self.network.to(self._dtype)
        if job.batch_norm == "global":
            with_global_batch_norm(self.network)
        self._batches = make_batches(
            [self.data.part("train")], self._trainable.task, self._trainable.inputs, job.global_batch, job.seed, device
        )
        if self._batches.batch_size < job.global_batch:
            raise TrainingError(f"global_batch = {job.global_batch}: {job.data} has {self._batches.batch_size} rows")
        length = len(self._batches)
        self.total = job.steps if job.steps is not None else int(job.epochs or 0) * length
        self._schedule = Schedule(
            math.ceil(self.total / length), job.lr, job.optimizer, job.weight_decay, warmup_epochs=job.warm_up,
            precision="fp32" if job.precision == "fp64" else job.precision, seed=job.seed, ema=0.0,
        )  # fmt: skip
        self._optimizer = make_optimizer(self.network, self._schedule)
        self.done = 0
        self.losses: list[float] = []
        self._range = (0, 10)
        self._stream: Iterator[Batch] | None = None
        self._weights = [p for p in self.network.parameters() if p.requires_grad]
        set_training(self.network, True)

    def take(self, shares: Shares, rank: int) -> None:
        """From now on, compute the tenths of the rank, which follow those of lower ranks in each batch."""
        first = sum(shares[:rank])
        if self._range != (first, first + shares[rank]):
            self._range = (first, first + shares[rank])
            self._stream = None

    def step(self, flag: float = 0.0) -> float:
        """Do one step. Returns the sum of `flag` over the ranks. Raises TrainingError for a loss that is not finite."""
        epoch, position = divmod(self.done, len(self._batches))
        if self._stream is None or position == 0:
            self._stream = self._batches.tenths(epoch, position, *self._range)
        batch = next(self._stream)
        # For dropout: different random numbers in each rank, and the same ones when a step is repeated.
        torch.manual_seed((self.job.seed * 1_000_003 + self.done) * 11 + self._range[0])
        # The schedule has whole epochs, which `steps` need not fill.
        set_rate(self._optimizer, self._schedule, self.done / self.total * self._schedule.epochs)
        with autocast(self.device, self._schedule.precision):
            outputs = self.network(batch["image"].to(self._dtype))
        assert self._trainable.loss is not None
        # Gradients are summed over the ranks, so that each image counts the same, whatever the shares.
        loss = self._trainable.loss(outputs, batch) * (len(batch["image"]) / self._batches.batch_size)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        value, flag = self._exchange(loss.detach(), flag)
        if not math.isfinite(value):
            raise TrainingError(f"step {self.done + 1}: the loss is {value}; lower lr = {self.job.lr} or check data")
        torch.nn.utils.clip_grad_norm_(self._weights, _CLIP)
        self._optimizer.step()
        self.losses.append(value)
        self.done += 1
        return flag

    def _exchange(self, loss: Tensor, flag: float) -> tuple[float, float]:
        """Sum gradients, loss and flag over the ranks, in one message, so that the flag costs nothing."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return float(loss), flag
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        extra = torch.tensor([flag], device=self.device)
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), loss.to(self._dtype).reshape(1), extra])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        *parts, value, summed = flat.split([*sizes, 1, 1])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return float(value), float(summed)

    def state_bytes(self) -> bytes:
        """The whole state, for a rank that joins."""
        buffer = io.BytesIO()
        torch.save(self._state(), buffer)
        return buffer.getvalue()

    def load_bytes(self, content: bytes) -> None:
        """Continue from the state of another rank."""
        self._load(torch.load(io.BytesIO(content), map_location=self.device, weights_only=True))

    def save(self, path: Path) -> None:
        """Write a checkpoint. Raises TrainingError if it cannot be written."""
        checkpoints.save(path, self._state(), self._identity())

    def load(self, path: Path) -> None:
        """Continue from a checkpoint. Raises TrainingError, with the differences, for that of another training."""
        self._load(checkpoints.load(path, self.network, self._identity()))

    def finish(self, path: Path) -> dict[str, float]:
        """Write the trained network and return its scores on the test part."""
        trainable = self._trainable
        for module in (self.network.float(), trainable.source.module):
            set_training(module, False)
        scores = score_rows(
            self.network, trainable.task, self.data.part("test"), trainable.inputs, trainable.decoder,
            trainable.labels, kind=trainable.kind,
        )  # fmt: skip
        described = trainable.source.description
        training = {"job": self.job.model_dump(mode="json"), "steps": self.total, "test_scores": scores}
        self.network.cpu()
        save_artifact(
            path,
            trainable.source.module,
            Description(
                model=self._origin(), num_classes=described.num_classes if described else self.job.num_classes,
                input_size=trainable.size, labels=self.data.labels if trainable.task == "classes" else trainable.labels,
                plan=dict(described.plan) if described else {}, provenance={**provenance(), "training": training},
                **trainable.source.own_interface,
            ),
        )  # fmt: skip
        return scores

    def suffix(self) -> str:
        """Suffix of the file that :meth:`finish` writes."""
        return suffix_of(self._origin())

    def _origin(self) -> str:
        description = self._trainable.source.description
        if description is not None:
            return description.model
        return self.job.model if is_built_from_a_name(self.job.model) else Path(self.job.model).name

    def _state(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "done": self.done,
            "losses": list(self.losses),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.done, self.losses = int(state["done"]), list(state["losses"])
        self._stream = None

    def _identity(self) -> dict[str, Any]:
        data = {"images": self.data.counts, "digest": self.data.digest}
        versions = {"multi_dnn_ros": __version__, "torch": torch.__version__}
        return {"job": self.job.settings, "data": data, "schedule": asdict(self._schedule), "versions": versions}
