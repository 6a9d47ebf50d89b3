"""An engine whose frames go by numbers, as the accounts know them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.observer import NullObserver, Observer
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result, Timing
from multi_dnn_ros.serving.pinned import PinnedImages
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.pipeline.pipeline import Pipeline

#: Runtime parameters that the decoder of a DNN reads for each frame.
_DECODER = ("score_threshold", "iou_threshold", "max_detections")


class Answers(Protocol):
    """Who is told what became of the frames; called in the DNNs' threads, drops also in the thread that offers."""

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None: ...

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None: ...

    def failure(self, failure: Failure) -> None: ...


class ServedEngine:
    """Serves from the moment it is made until :meth:`stop`. observer: see there."""

    def __init__(
        self, pipeline: Pipeline, config: NodeConfig, answers: Answers, observer: Observer | None = None
    ) -> None:
        self._answers = answers
        self._pins = PinnedImages(pipeline.device)
        self._engine = Engine(
            [_with_settings(task, config.dnns[task.name]) for task in pipeline.tasks],
            on_result=self._on_result,
            on_drop=self._on_drop,
            on_failure=answers.failure,
            workers=pipeline.workers,
            policy=config.policy,
            device=pipeline.device,
            max_failures=config.max_failures,
            aging_ns=_nanoseconds(config.aging_ms),
            max_launched=config.max_launched or None,
            observer=observer or NullObserver(),
        )
        self._engine.start()

    def offer(
        self,
        number: int,
        camera: str,
        image: npt.NDArray[np.uint8],
        *,
        stamp_ns: int,
        received_ns: int,
        decode_ns: int,
        dnns: Collection[str] | None = None,
    ) -> None:
        """Hand an image, (H, W, 3) uint8, in its place in a slot, to the DNNs of its camera; one thread a camera.

        dnns: only to these; None: to all.
        """
        self._pins.pin(image)
        frame = Frame(camera, stamp_ns, context=number)
        frame.set_image(image, decode_ns)
        frame.received_ns = received_ns
        self._engine.offer(frame, dnns)

    def update(self, dnn: str, name: str, value: Any) -> None:
        """Change the scheduling of a DNN while it runs; other names have no effect here."""
        if name == "priority":
            self._engine.update(dnn, priority=value)
        elif name == "deadline_ms":
            self._engine.update(dnn, deadline_ns=_nanoseconds(value))
        elif name == "max_age_ms":
            self._engine.update(dnn, max_age_ns=_nanoseconds(value))

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames that wait and are under way; names the threads that hang."""
        hanging = self._engine.stop(timeout_s, drain=True)
        if not hanging:  # else one of them may upload
            self._pins.close()
        return hanging

    def alive(self) -> list[str]:
        """Threads that run; after :meth:`stop` those that hang."""
        return self._engine.alive()

    def ended(self) -> list[str]:
        """Threads that ended by an error."""
        return self._engine.ended()

    def _on_result(self, result: Result) -> None:
        self._answers.result(_number(result.frame), result.dnn, result.output, result.timing)

    def _on_drop(self, drop: Drop) -> None:
        self._answers.drop(_number(drop.frame), drop.dnn, drop.reason, drop.message)


def set_runtime(config: NodeConfig, pipeline: Pipeline | None, dnn: str, name: str, value: Any) -> None:
    """Put a runtime parameter into the settings, and into the decoder if it reads it; whether frames are served or
    not."""
    setattr(config.dnns[dnn], name, value)
    if pipeline is not None and name in _DECODER:
        setattr(pipeline.dnns[dnn].decoder, name, value)


def _number(frame: Frame) -> int:
    assert isinstance(frame.context, int)
    return frame.context


def _with_settings(task: DnnTask, settings: DnnConfig) -> DnnTask:
    """The task with what may have changed since it was made."""
    return replace(
        task,
        priority=settings.priority,
        deadline_ns=_nanoseconds(settings.deadline_ms) or None,
        max_age_ns=_nanoseconds(settings.max_age_ms) or None,
    )


def _nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6)
