"""The training of one job in one process: steps on its tenths of every batch, and its state."""

from __future__ import annotations

import io
import math
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
from multi_dnn_ros.fleet.step_batches import StepBatches
from multi_dnn_ros.models.artifact import Description, is_built_from_a_name, save_artifact, suffix_of
from multi_dnn_ros.models.finite_weights import non_finite_tensor
from multi_dnn_ros.training import checkpoint as checkpoints
from multi_dnn_ros.training.batch_norm import with_global_batch_norm
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.checks import CheckedData, check_data
from multi_dnn_ros.training.data import DataRequest, open_data
from multi_dnn_ros.training.loop import Schedule, make_optimizer, set_rate, set_training
from multi_dnn_ros.training.precision import autocast
from multi_dnn_ros.training.retrain import check_labels
from multi_dnn_ros.training.setup import make_batches, score_rows
from multi_dnn_ros.training.trainable import Trainable
from multi_dnn_ros.training.transfers import HostCopy

_CLIP = 10.0


def read_data(job: FleetJob, network: Trainable) -> CheckedData:
    """The checked data set of a job, for its network. Raises DatasetError, TrainingError."""
    opened = open_data(job.data, DataRequest(network.task, network.framing, network.labels, job.scenes))
    check_labels(network, opened)
    return check_data(opened, progress=False, selects_epoch=False)


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
        batches = make_batches(
            [self.data.part("train")], self._trainable.task, self._trainable.inputs, job.global_batch, job.seed, device
        )
        if batches.batch_size < job.global_batch:
            raise TrainingError(f"global_batch = {job.global_batch}: {job.data} has {batches.batch_size} rows")
        self._batches = StepBatches(batches)
        length = len(batches)
        self.total = job.steps if job.steps is not None else int(job.epochs or 0) * length
        self._schedule = Schedule(
            math.ceil(self.total / length), job.lr, job.optimizer, job.weight_decay, warmup_epochs=job.warm_up,
            precision="fp32" if job.precision == "fp64" else job.precision, seed=job.seed, ema=0.0,
        )  # fmt: skip
        self._optimizer = make_optimizer(self.network, self._schedule)
        self.done = 0
        self.losses: list[float] = []
        self._first = 0
        self._weights = [p for p in self.network.parameters() if p.requires_grad]
        set_training(self.network, True)

    def take(self, shares: Shares, rank: int) -> None:
        """From now on, compute the tenths of the rank, which follow those of lower ranks in each batch."""
        self._first = sum(shares[:rank])
        self._batches.take(self._first, self._first + shares[rank])

    def step(self, flag: float = 0.0) -> float:
        """Do one step. Returns the sum of `flag` over the ranks. Raises TrainingError for a loss that is not finite.

        On a GPU this returns when the host has read the loss, while the GPU still updates the weights and prepares the
        next batch. So the time from one return to the next is that of a whole step, but the last step of the training,
        which prepares no batch. After an exception the state must not be used: the weights may be those after the step.
        An error in the next batch is raised in this step, which is then not counted.
        """
        batch = self._batches.get(self.done)
        # For dropout: different random numbers in each rank, and the same ones when a step is repeated.
        torch.manual_seed((self.job.seed * 1_000_003 + self.done) * 11 + self._first)
        # The schedule has whole epochs, which `steps` need not fill.
        set_rate(self._optimizer, self._schedule, self.done / self.total * self._schedule.epochs)
        with autocast(self.device, self._schedule.precision):
            outputs = self.network(batch["image"].to(self._dtype))
        assert self._trainable.loss is not None
        # Gradients are summed over the ranks, so that each image counts the same, whatever the shares.
        loss = self._trainable.loss(outputs, batch) * (len(batch["image"]) / self.job.global_batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        exchanged = HostCopy(self._exchange(loss.detach(), flag))
        torch.nn.utils.clip_grad_norm_(self._weights, _CLIP)
        self._optimizer.step()
        # Before the loss is read: the GPU would be idle if the host prepared the next batch only then.
        if self.done + 1 < self.total:
            self._batches.prepare(self.done + 1)
        value, flag = exchanged.values()
        if not math.isfinite(value):
            raise TrainingError(f"step {self.done + 1}: the loss is {value}; lower lr = {self.job.lr} or check data")
        self.losses.append(value)
        self.done += 1
        return flag

    def _exchange(self, loss: Tensor, flag: float) -> Tensor:
        """Sum gradients, loss and flag over the ranks, in one message, so that the flag costs nothing.

        Returns the sums of loss and flag, (2,).
        """
        # Not torch.tensor(), for whose copy to the GPU the host would wait.
        extra = torch.full((1,), flag, dtype=self._dtype, device=self.device)
        own = torch.cat([loss.to(self._dtype).reshape(1), extra])
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return own
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), own])
        dist.all_reduce(flat)
        parts, sums = flat[:-2].split([gradient.numel() for gradient in gradients]), flat[-2:]
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return sums

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
        """Write the trained network and return its scores on the test part.

        Raises TrainingError if a weight or a statistic of batch normalization is not finite.
        """
        trainable = self._trainable
        if (name := non_finite_tensor(trainable.source.module.state_dict())) is not None:
            raise TrainingError(
                f"step {self.done}: {name} is not finite, and the network is not written; lower lr = {self.job.lr} or "
                "check data"
            )
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

    def _identity(self) -> dict[str, Any]:
        data = {"images": self.data.counts, "digest": self.data.digest}
        versions = {"multi_dnn_ros": __version__, "torch": torch.__version__}
        return {"job": self.job.settings, "data": data, "schedule": asdict(self._schedule), "versions": versions}
