"""Runs the DNNs of a replay on batches of frames, for example on several processors at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, DropReason, Result, Timing
from multi_dnn_ros.replay.frame_runner import Settle

#: Inputs of the network (N, 3, height, width) float32 -> its outputs, (N, ...) each.
Compute = Callable[[npt.NDArray[np.float32]], Sequence[npt.NDArray[Any]]]

_NO_TIMES = Timing(0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class BatchedDnn:
    """One DNN. preprocess, decode: as in :class:`multi_dnn_ros.engine.task.DnnTask`, for one image on the CPU.

    compute: an error that it raises ends the replay. tiles: number of network inputs per image, which is also the
    number of rows per image in each output.
    """

    name: str
    cameras: tuple[str, ...]
    preprocess: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    decode: Callable[[tuple[torch.Tensor, ...], tuple[int, int]], Any]
    compute: Compute
    tiles: int = 1


class BatchRunner:
    """Collects the frames of all cameras until they fill a batch of a DNN, and then runs the batch in `submit`.

    batch: maximum number of inputs per inference; not less than the tiles of any DNN.
    """

    def __init__(self, dnns: Sequence[BatchedDnn], batch: int) -> None:
        self._dnns = tuple(dnns)
        self._batch = batch
        self._waiting: dict[str, list[Frame]] = {dnn.name: [] for dnn in dnns}
        self._settle: Settle = lambda end: None

    @property
    def streams(self) -> Sequence[tuple[str, tuple[str, ...]]]:
        return [(dnn.name, dnn.cameras) for dnn in self._dnns]

    def start(self, settle: Settle) -> None:
        self._settle = settle

    def submit(self, frame: Frame, timeout_s: float) -> bool:
        for dnn in self._dnns:
            if frame.camera in dnn.cameras:
                self._waiting[dnn.name].append(frame)
                if len(self._waiting[dnn.name]) == self._batch // dnn.tiles:
                    self._run(dnn)
        return True

    def finish(self) -> None:
        for dnn in self._dnns:
            self._run(dnn)

    def stop(self) -> None:
        for dnn in self._dnns:
            for frame in self._waiting[dnn.name]:
                self._settle(Drop(dnn.name, frame, DropReason.SHUTDOWN, "the replay ended early"))
            self._waiting[dnn.name] = []

    def _run(self, dnn: BatchedDnn) -> None:
        frames, inputs = [], []
        for frame in self._waiting[dnn.name]:
            try:
                with torch.inference_mode():
                    inputs.append(dnn.preprocess(frame.tensor(torch.device("cpu")))[0].numpy())
                frames.append(frame)
            except Exception as error:  # as in the engine, only the frame that cannot be preprocessed is lost
                self._settle(Drop(dnn.name, frame, DropReason.DNN_ERROR, f"preprocessing: {error}"))
        self._waiting[dnn.name] = []
        if not frames:
            return
        outputs = [torch.from_numpy(output) for output in dnn.compute(np.concatenate(inputs))]
        for index, frame in enumerate(frames):
            rows = slice(index * dnn.tiles, (index + 1) * dnn.tiles)
            try:
                height, width = frame.size
                result = dnn.decode(tuple(output[rows].float() for output in outputs), (height, width))
            except Exception as error:  # decoders raise arbitrary errors for malformed outputs
                self._settle(Drop(dnn.name, frame, DropReason.BAD_OUTPUT, f"{type(error).__name__}: {error}"))
                continue
            self._settle(Result(dnn.name, frame, result, _NO_TIMES))
