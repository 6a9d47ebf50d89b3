"""One process per DNN, as a baseline: the same DNNs without a common engine."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch

from multi_dnn_ros.backends import run_stages
from multi_dnn_ros.benchmark.plain_export import export_network
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.common.signal_mask import block_in_children
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.settings.schema import NodeConfig

Image = npt.NDArray[np.uint8]
#: Takes an image, returns the decoded result.
Inference = Callable[[Image], object]
#: Returns the inference of the DNN with this name; called in the process of the DNN.
Prepare = Callable[[NodeConfig, str], Inference]
#: Time limit for preparing the DNNs; the limit of a run is longer by _IMAGE_LIMIT_S for each image.
_LIMIT_S, _IMAGE_LIMIT_S = 900.0, 10.0


def infer(task: DnnTask, image: Image) -> object:
    """Run a task as the engine does if no other DNN is waiting."""
    stages = (task.single_launch[1],) if 1 in task.single_launch else task.stages
    return task.decode(run_stages(stages, task.preprocess(torch.from_numpy(image))), (image.shape[0], image.shape[1]))


def served(config: NodeConfig, name: str) -> Inference:
    """The DNN as the engine runs it, with this process's share of the cores."""
    changes = {"dnns": {name: config.dnns[name]}, "workers": 1, "cpu_threads": _threads(config)}
    (task,) = build(config.model_copy(update=changes)).tasks
    return lambda image: infer(task, image)


def plain(config: NodeConfig, name: str) -> Inference:
    """The network as PyTorch exports it, with ONNX Runtime's default options except the number of threads.

    Preprocessing and decoding are the package's.
    """
    torch.set_num_threads(_threads(config))
    dnn = load_dnn(name, config.dnns[name])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _threads(config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        export_network(dnn.module, dnn.example_inputs(), path)
        session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()

    def run(image: Image) -> object:
        (tensor,) = dnn.preprocess(torch.from_numpy(image))
        outputs = session.run(None, {source.name: tensor.numpy()})
        return dnn.decoder(tuple(map(torch.from_numpy, outputs)), (image.shape[0], image.shape[1]))

    return run


def _threads(config: NodeConfig) -> int:
    return max(1, cpu_count() // len(config.dnns))


class DnnProcesses:
    """One process per DNN of `config`, started once; each run starts in all processes at the same time."""

    def __init__(self, prepare: Prepare, config: NodeConfig, images: Sequence[Image]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready = False
        self._run_limit_s = _LIMIT_S + _IMAGE_LIMIT_S * len(images)
        self._connections: list[Connection] = []
        self._processes = []
        for name in config.dnns:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(prepare, config, name, images, theirs), name=f"DNN {name}", daemon=True
            )
            with block_in_children(signal.SIGINT):
                process.start()
            theirs.close()  # so that the pipe closes when the process ends
            self._connections.append(ours)
            self._processes.append(process)

    def run(self) -> float:
        """Seconds until the last process has finished all images. Raises CommandError if one has ended or hangs."""
        if not self._ready:
            self._await_all(_LIMIT_S)
            self._ready = True
        begin = time.perf_counter()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # a process that ended is reported below
                connection.send(None)
        self._await_all(self._run_limit_s)
        return time.perf_counter() - begin

    def close(self) -> None:
        for connection in self._connections:
            connection.close()  # each process reads the end of the pipe
        for process in self._processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()

    def _await_all(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for process, connection in zip(self._processes, self._connections, strict=True):
            try:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    raise CommandError(f"the process of {process.name} did not answer within {limit_s:g} s")
                connection.recv()
            except (EOFError, OSError):
                process.join(10.0)
                raise CommandError(f"the process of {process.name} ended with exit code {process.exitcode}") from None


def _serve(prepare: Prepare, config: NodeConfig, name: str, images: Sequence[Image], connection: Connection) -> None:
    """Body of the process: reports when it is ready and after each run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    run = prepare(config, name)
    with torch.inference_mode(), contextlib.suppress(EOFError, OSError):  # the parent closed the pipe or ended
        while True:
            connection.send(None)
            connection.recv()
            for image in images:
                run(image)
