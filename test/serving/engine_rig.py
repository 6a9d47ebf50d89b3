"""An engine process, and the operations of a node on it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import psutil

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.serving import default_build, messages
from multi_dnn_ros.serving.descriptions import Build
from multi_dnn_ros.serving.engine_process import EngineProcess
from multi_dnn_ros.serving.slots import Slot, SlotLayout, SlotPool
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.jpeg_file import FrameImage, JpegFile, size_of

WAIT_S = 60.0
Message = TypeVar("Message")


def build_after_tracing(config: NodeConfig, progress: Callable[[str], None]) -> Any:
    """Like the default build, but first reports which further modules of PyTorch tracing a network imports."""
    import torch

    from multi_dnn_ros.graph.trace import trace
    from multi_dnn_ros.models.networks import DetectorNet

    before = set(sys.modules)
    network = DetectorNet(2, (64, 64), channels=(4,) * 5, blocks=(1, 0, 0, 0), neck=4)
    trace(network.eval(), (torch.zeros(1, 3, 64, 64),), fold_batch_norm=True)
    more = sorted(name for name in set(sys.modules) - before if name.startswith("torch"))
    progress(",".join(["tracing", *more]))
    return default_build.build(config, progress)


class Rig:
    """Starts the process and keeps all its messages. modules: see EngineProcess."""

    def __init__(
        self,
        config: NodeConfig,
        label: str = "engine test",
        slots: int = 8,
        modules: tuple[str, ...] = ("fake_pipelines",),
    ) -> None:
        self.config = config
        self.messages: list[Any] = []
        self.ends: list[messages.Ended] = []
        self.changed = threading.Condition()
        self.numbers = 0
        self.dnns = tuple(config.dnns)
        masks = tuple(config.dnns)
        self.pools = {
            name: SlotPool(SlotLayout(name, slots, camera.max_pixels, masks)) for name, camera in config.cameras.items()
        }
        self.process = EngineProcess(label, self.dnns, self.pools, self._on_message, modules)

    def _on_message(self, message: Any) -> None:
        with self.changed:
            (self.ends if isinstance(message, messages.Ended) else self.messages).append(message)
            self.changed.notify_all()

    def until(self, condition: Callable[[], Any], what: str = "the condition", timeout_s: float = WAIT_S) -> Any:
        with self.changed:
            reached = self.changed.wait_for(lambda: condition() or self.ends, timeout_s)
            value = condition()
        assert value, f"no {what} within {timeout_s} s; {self.ends or reached}; {self.messages[-5:]}"
        return value

    def all(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.messages if isinstance(message, kind)]

    def answer(self, message: Any, kind: type[Message]) -> Message:
        """Send a message, and wait for the next message of a kind."""
        before = len(self.all(kind))
        self.process.send(message)
        self.until(lambda: len(self.all(kind)) > before, kind.__name__)
        return self.all(kind)[before]

    def ready(self) -> messages.Ready:
        self.until(lambda: self.all(messages.Ready), "Ready")
        return self.all(messages.Ready)[0]

    def configure(self, build: Build | None = None, **arguments: Any) -> Any:
        """Configure the process. Returns Configured or Refused. build: by default the one of fake_pipelines."""
        if build is None:
            from fake_pipelines import build  # needs PyTorch
        self.ready()
        before = len(self.all(messages.Configured)), len(self.all(messages.Refused))
        self.process.send(messages.Configure(self.config, self.dnns, build, **arguments))
        self.until(
            lambda: (len(self.all(messages.Configured)), len(self.all(messages.Refused))) != before, "Configured"
        )
        return [message for message in self.messages if isinstance(message, (messages.Configured, messages.Refused))][
            -1
        ]

    def serve(self, build: Build | None = None) -> Rig:
        configured = self.configure(build)
        assert isinstance(configured, messages.Configured), configured
        self.process.send(messages.Start({}))
        return self

    def dnns_of(self, camera: str) -> tuple[str, ...]:
        return tuple(name for name, dnn in self.config.dnns.items() if not dnn.cameras or camera in dnn.cameras)

    def offer(
        self,
        value: int,
        camera: str = "front",
        size: tuple[int, int] = (48, 64),
        dnns: tuple[str, ...] | None = None,
    ) -> tuple[int, Slot]:
        """Offer an image full of `value`; the caller releases the slot. dnns: by default all of the camera."""
        return self.offer_image(np.full((*size, 3), value, np.uint8), camera, dnns)

    def offer_image(
        self, image: FrameImage, camera: str = "front", dnns: tuple[str, ...] | None = None
    ) -> tuple[int, Slot]:
        """Offer pixels or a JPEG file, as :meth:`offer` does."""
        dnns = self.dnns_of(camera) if dnns is None else dnns
        slot = self.pools[camera].take(WAIT_S)
        assert slot is not None
        height, width = size_of(image)
        jpeg_bytes = 0
        if isinstance(image, JpegFile):
            jpeg_bytes = image.data.nbytes
            image.copy(slot.file(jpeg_bytes))
        else:
            slot.image(height, width)[:] = image
        self.numbers += 1
        begin = time.monotonic_ns() - 3_000_000
        offer = messages.Offer(self.numbers, camera, slot.index, height, width, 5, begin, 2_000_000, dnns, jpeg_bytes)
        self.process.send(offer)
        return self.numbers, slot

    def outcomes(self, value: int, camera: str = "front", size: tuple[int, int] = (48, 64)) -> dict[str, Any]:
        """Offer an image full of `value`. Returns, by DNN, its result or FrameDropped."""
        return self.outcomes_of(np.full((*size, 3), value, np.uint8), camera)

    def outcomes_of(self, image: FrameImage, camera: str = "front") -> dict[str, Any]:
        """Likewise for pixels or a JPEG file."""
        number, slot = self.offer_image(image, camera)
        found: dict[str, Any] = {}

        def complete() -> bool:
            for message in self.messages:
                if isinstance(message, (messages.FrameResult, messages.FrameDropped)) and message.number == number:
                    found[message.dnn] = message
            return len(found) == len(self.dnns_of(camera))

        self.until(complete, "answers")
        results = {
            dnn: messages.unpack(answer, slot.output(dnn)) if isinstance(answer, messages.FrameResult) else answer
            for dnn, answer in found.items()
        }
        slot.release()
        return results

    def failures(self) -> list[Failure]:
        return [message.failure for message in self.all(messages.Failed)]

    def end(self, timeout_s: float = WAIT_S) -> messages.Ended:
        """Wait for the end of the process."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.ends, timeout_s), f"alive after {timeout_s} s"
        return self.ends[0]

    def close(self) -> None:
        self.process.kill("the test is over")
        self.end()
        for pool in self.pools.values():
            pool.close()


def thread_nice(pid: int) -> dict[int, int]:
    """The nice value of each thread of a process."""
    return {thread.id: psutil.Process(thread.id).nice() for thread in psutil.Process(pid).threads()}


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal."""
    return type(one) is type(other) and all(
        np.array_equal(value, getattr(other, name)) if isinstance(value, np.ndarray) else value == getattr(other, name)
        for name, value in vars(one).items()
    )
