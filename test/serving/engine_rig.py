"""An engine process, its slots and a ledger, and the operations of a node on them."""

from __future__ import annotations

import queue
from collections import deque
from typing import Any

import numpy as np
from fake_host import Ends

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import Build, EngineDescription
from multi_dnn_ros.serving.engine_process import Engine, Events
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger
from multi_dnn_ros.serving.shared_memory import SlotLayout, SlotPool
from multi_dnn_ros.settings.schema import NodeConfig

WAIT_S = 60.0


class Rig:
    """Starts the process. progress: the texts of its reports. ends: results and drops, as the ledger reports them."""

    def __init__(self, config: NodeConfig, modules: tuple[str, ...] = ("fake_pipelines",)) -> None:
        self.config, self.dnns = config, tuple(config.dnns)
        self.ends, self.progress = Ends(), deque[str]()
        self.pools = {
            name: SlotPool(SlotLayout(name, 8, camera.max_pixels, self.dnns)) for name, camera in config.cameras.items()
        }
        self.events: Events = queue.SimpleQueue()
        self.engine = Engine("engine test", "cpu", self.dnns, self.pools, self.events, modules)
        settings = {name: DnnSettings(tuple(dnn.cameras or config.cameras)) for name, dnn in config.dnns.items()}
        self.ledger = self.engine.ledger = Ledger(settings, self.ends.callbacks())

    def event(self, *kinds: type) -> Any:
        """The next message of one of these kinds, or Ended."""
        while True:
            _, message = self.events.get(timeout=WAIT_S)
            if isinstance(message, messages.Progress):
                self.progress.append(message.text)
            if isinstance(message, (*kinds, messages.Ended)):
                return message

    def configure(self, build: Build | None = None, *, in_background: bool = False) -> Any:
        """The answer: EngineDescription, Refused or Ended. build: by default the one of fake_pipelines."""
        if build is None:
            from fake_pipelines import build  # needs PyTorch
        self.engine.send(messages.Configure(self.config, self.dnns, build, in_background))
        return self.event(EngineDescription, messages.Refused)

    def serve(self, build: Build | None = None) -> Rig:
        assert isinstance(self.configure(build), EngineDescription)
        return self

    def offer(self, value: int, camera: str = "front", size: tuple[int, int] = (48, 64)) -> int:
        """Offer an image full of `value`. Returns the number of DNNs that answer."""
        slot, frame = self.pools[camera].take(WAIT_S), Frame(camera, 5)
        assert slot is not None
        memory = slot.image(*size)
        memory[:] = value
        frame.set_image(memory, decode_ns=0)
        dnns = self.ledger.arrived(frame)
        number, _ = self.ledger.open(frame, slot, dnns, lambda dnn: self.engine)
        self.engine.offer(number, frame, slot, dnns)
        return len(dnns)

    def outcomes(self, value: int, camera: str = "front", size: tuple[int, int] = (48, 64)) -> Any:
        """Offer an image. Returns, by DNN, its output or Drop."""
        before = len(self.ends.results), len(self.ends.drops)
        count = self.offer(value, camera, size)
        self.ends.wait(lambda: len(self.ends.results) + len(self.ends.drops) >= sum(before) + count)
        found: dict[str, Any] = {result.dnn: result.output for result in self.ends.results[before[0] :]}
        return found | {drop.dnn: drop for drop in self.ends.drops[before[1] :]}

    def end(self) -> messages.Ended:
        """Wait for the end of the process."""
        ended = self.event()
        self.ledger.engine_lost(self.engine, ended.cause, ended=True)
        return ended

    def close(self) -> None:
        self.engine.kill("the test is over")
        assert self.engine.wait(WAIT_S)
        for pool in self.pools.values():
            pool.close()


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal."""
    return type(one) is type(other) and all(
        np.array_equal(value, getattr(other, name)) if isinstance(value, np.ndarray) else value == getattr(other, name)
        for name, value in vars(one).items()
    )
