"""A process of a job: an actor of Ray that trains on one unit. The controller calls it; it calls nobody."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multi_dnn_ros import __version__
from multi_dnn_ros.common.extras import optional, require
from multi_dnn_ros.common.reporting import provenance
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.models.artifact import Description, is_built_from_a_name, save_artifact, suffix_of
from multi_dnn_ros.models.registry import source_of
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.data import Batches, open_data
from multi_dnn_ros.training.loop import (
    Schedule,
    TrainingError,
    load_checkpoint,
    make_optimizer,
    save_checkpoint,
    set_rate,
    set_training,
)
from multi_dnn_ros.training.losses import autocast
from multi_dnn_ros.training.retrain import check_labels
from multi_dnn_ros.training.samples import Batch
from multi_dnn_ros.training.scoring import score_rows
from multi_dnn_ros.training.trainable import make_trainable


@dataclass(frozen=True)
class Progress:
    """done, total: steps of the job so far, and in all. losses: those of the last steps. seconds: their duration."""

    done: int
    total: int
    losses: list[float]
    seconds: float = 0.0


class JobWorker:
    """job: what it trains. threads: of a CPU unit; 0: the unit is a GPU. folder: the job's, which gets a log.

    The constructor does nothing that takes long or can fail; call :meth:`prepare` before everything else.
    """

    def __init__(self, job: FleetJob, threads: int, folder: Path) -> None:
        self.job, self._threads, self._folder = job, threads, folder
        self._device = torch.device("cpu" if threads else "cuda")
        self._done = 0
        self._losses: list[float] = []

    def prepare(self, checkpoint: Path) -> Progress:
        """Read the data, build the network, and load the checkpoint if there is one; takes seconds to minutes.

        Raises TrainingError, ModelError, DatasetError, OSError; MissingExtra without a library that the scores need.
        """
        logging.getLogger().addHandler(logging.FileHandler(self._folder / "job.log"))
        torch.set_num_threads(self._threads or 1)  # on a GPU as torchrun does: there is a process for each job and GPU
        job = self.job
        torch.manual_seed(job.seed)  # of random weights
        found = source_of(job.model)
        built = found is not None and found.takes_weights
        source = load_network(
            job.model, weights=job.weights if built else "default", num_classes=job.num_classes if built else 0,
            size=job.size,
        )  # fmt: skip
        trainable = make_trainable(
            source, job.model, size=job.size, decoder=job.decoder, labels=job.labels, smoothing=job.label_smoothing
        )
        if trainable.loss is None:
            raise TrainingError(f"the outputs of {job.model} have no loss; the fleet trains without a teacher")
        if trainable.task == "boxes":
            require("average precision", "pycocotools")
        self._trainable, self._loss = trainable, trainable.loss
        self._data = open_data(job.data, trainable.task, trainable.framing, trainable.labels, job.scenes)
        check_labels(trainable, self._data)
        self._network = trainable.network.to(self._device)
        self._batches = Batches(
            [self._data.part("train")], trainable.task, trainable.inputs, job.global_batch, job.seed, self._device
        )
        if self._batches.batch_size < job.global_batch:
            raise TrainingError(f"global_batch = {job.global_batch}: {job.data} has {self._batches.batch_size} rows")
        length = len(self._batches)
        self._total = job.steps if job.steps is not None else int(job.epochs or 0) * length
        self._schedule = Schedule(
            math.ceil(self._total / length), job.lr, job.optimizer, job.weight_decay, warmup_epochs=job.warm_up,
            precision=job.precision, seed=job.seed, ema=0.0,
        )  # fmt: skip
        self._optimizer = make_optimizer(self._network, self._schedule)
        self._weights = [weight for weight in self._network.parameters() if weight.requires_grad]
        set_training(self._network, True)
        if checkpoint.exists():
            state = load_checkpoint(checkpoint, self._identity(), self._device)
            self._network.load_state_dict(state["network"])
            self._optimizer.load_state_dict(state["optimizer"])
            self._done, self._losses = int(state["done"]), list(state["losses"])
        return Progress(self._done, self._total, self._losses)

    def address(self) -> str:
        """tcp://HOST:PORT at which the processes of the job can meet."""
        with optional("fleet"):
            import ray
        with socket.socket() as free:
            free.bind((ray.util.get_node_ip_address(), 0))  # type: ignore[no-untyped-call]
            host, port = free.getsockname()
        return f"tcp://{host}:{port}"

    def join(self, rank: int, world: int, address: str) -> None:
        """Form a group with the other processes of the job, as number `rank` of `world`; all call this at the same
        time. From now on each computes a part of every batch; the parts differ by at most one image.
        """
        if world > 1:
            backend = "gloo" if self._threads else "nccl"
            dist.init_process_group(backend, address, world_size=world, rank=rank)
        self._passes = distributed.replicated(self._network)
        self._stream = self._batches_from(self._done)
        self._next: Batch | None = None

    def train(self, steps: int) -> Progress:
        """Do so many steps, together with the other processes.

        Raises TrainingError for a loss that is not finite, DatasetError for an image of the next batch that cannot be
        read.
        """
        begin = time.monotonic()
        for _ in range(steps):
            self._step()
        return Progress(self._done, self._total, self._losses[-steps:], time.monotonic() - begin)

    def rest(self) -> None:
        """Return the GPU memory that only steps need, because another job has its turn."""
        if not self._threads:
            torch.cuda.empty_cache()

    def save(self, checkpoint: Path) -> None:
        """Write a checkpoint. Raises TrainingError if it cannot be written."""
        state = {
            "network": self._network.state_dict(), "optimizer": self._optimizer.state_dict(), "done": self._done,
            "losses": self._losses,
        }  # fmt: skip
        save_checkpoint(checkpoint, state, self._identity())

    def finish(self) -> dict[str, float]:
        """Write the trained network, and return its scores on the test part.

        Raises ModelError, which names it, for a weight or a statistic of batch normalization that is not finite.
        """
        job, trainable, described = self.job, self._trainable, self._trainable.source.description
        for module in (self._network, trainable.source.module):
            set_training(module, False)
        name = job.model if is_built_from_a_name(job.model) else Path(job.model).name
        origin = described.model if described else name
        save_artifact(
            job.output or self._folder / f"{job.name}{suffix_of(origin)}",
            trainable.source.module,
            Description(
                model=origin, num_classes=described.num_classes if described else job.num_classes,
                input_size=trainable.size,
                labels=self._data.labels if trainable.task == "classes" else trainable.labels,
                plan=dict(described.plan) if described else {},
                provenance={**provenance(), "training": {"job": job.model_dump(mode="json"), "steps": self._total}},
                **trainable.source.own_interface,
            ),
        )  # fmt: skip
        return score_rows(trainable, self._data.part("test"), self._network)

    def _step(self) -> None:
        batch = self._next if self._next is not None else next(self._stream)
        # For dropout: different random numbers in each process, and the same ones when a step is repeated.
        torch.manual_seed((self.job.seed * 1_000_003 + self._done) * 11 + distributed.rank())
        # The schedule has whole epochs, which `steps` need not fill.
        set_rate(self._optimizer, self._schedule, self._done / self._total * self._schedule.epochs)
        with autocast(self._device, self._schedule.precision):
            outputs = self._passes(batch["image"])
        # Gradients are averaged over the processes, and each image counts the same, whatever their parts.
        part = len(batch["image"]) / self.job.global_batch
        loss = self._loss(outputs, batch) * (part * distributed.world())
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        exchanged = distributed.total(loss.detach()) / distributed.world()
        torch.nn.utils.clip_grad_norm_(self._weights, self._schedule.clip)
        self._optimizer.step()
        # Before the loss is read: the GPU would be idle if the host fetched the next batch only then.
        self._next = next(self._stream) if self._done + 1 < self._total else None
        value = float(exchanged)
        if not math.isfinite(value):
            raise TrainingError(f"step {self._done + 1}: the loss is {value}; lower lr = {self.job.lr} or check data")
        self._losses.append(value)
        self._done += 1

    def _batches_from(self, step: int) -> Iterator[Batch]:
        """This process's part of each batch, from a step on."""
        while True:
            for batch in self._batches.epoch(*divmod(step, len(self._batches))):
                step += 1
                yield batch

    def _identity(self) -> dict[str, Any]:
        data = {part: len(self._data.part(part)) for part in self._data.stored}
        versions = {"multi_dnn_ros": __version__, "torch": torch.__version__}
        return {"job": self.job.settings, "data": data, "schedule": asdict(self._schedule), "versions": versions}
