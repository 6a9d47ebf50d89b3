"""An engine whose frames are identified by their numbers in the accounts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from multi_dnn_ros.common.jpeg_file import FrameImage, JpegFile
from multi_dnn_ros.common.time_units import ms_to_ns
from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.observer import NullObserver, Observer
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result, Timing
from multi_dnn_ros.serving.pinned import PinnedImages
from multi_dnn_ros.settings.dnn_parameters import assign
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.pipeline.pipeline import Pipeline

#: Runtime parameters that are attributes of a DNN's decoder.
_DECODER_PARAMETERS = ("score_threshold", "iou_threshold", "max_detections")


class OutcomeReceiver(Protocol):
    """Receives what became of the frames. Called in the DNNs' threads; `drop` also in those that offer frames, decode
    images and stop the engine.
    """

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None: ...

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None: ...

    def failure(self, failure: Failure) -> None: ...


class ServedEngine:
    """Serves from its creation until :meth:`stop`. outcomes: receives results, drops and failures."""

    def __init__(
        self, pipeline: Pipeline, config: NodeConfig, outcomes: OutcomeReceiver, observer: Observer | None = None
    ) -> None:
        self._outcomes = outcomes
        self._pins = PinnedImages(pipeline.device)
        self._jpeg_decoder = pipeline.jpeg_decoder
        self._engine = Engine(
            [_with_settings(task, config.dnns[task.name]) for task in pipeline.tasks],
            on_result=self._on_result,
            on_drop=self._on_drop,
            on_failure=outcomes.failure,
            workers=pipeline.workers,
            policy=config.policy,
            device=pipeline.device,
            max_failures=config.max_failures,
            aging_ns=ms_to_ns(config.aging_ms),
            observer=observer or NullObserver(),
        )
        self._engine.start()

    def offer(
        self,
        number: int,
        camera: str,
        image: FrameImage,
        *,
        stamp_ns: int,
        received_ns: int,
        decode_ns: int,
        dnns: Collection[str] | None = None,
    ) -> None:
        """Offer an image to the DNNs of its camera; called by one thread per camera.

        image: (H, W, 3) uint8 RGB or a JPEG file, at the beginning of a slot; not read after the DNNs have answered.
        Times: nanoseconds. dnns: only these DNNs; None: all of the camera.
        """
        if not isinstance(image, JpegFile):  # which is small, and decoded where it lies
            self._pins.pin(image)
        frame = Frame(camera, stamp_ns, context=number, jpeg_decoder=self._jpeg_decoder)
        frame.set_image(image, decode_ns)
        frame.received_ns = received_ns
        self._engine.offer(frame, dnns)

    def update(self, dnn: str, name: str, value: Any) -> None:
        """Change a scheduling parameter of a DNN; the names of other parameters have no effect."""
        if name == "priority":
            self._engine.update(dnn, priority=value)
        elif name == "deadline_ms":
            self._engine.update(dnn, deadline_ns=ms_to_ns(value))
        elif name == "max_age_ms":
            self._engine.update(dnn, max_age_ns=ms_to_ns(value))

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames that are waiting or in progress. Returns the names of threads that hang."""
        hanging = self._engine.stop(timeout_s, drain=True)
        if not hanging:  # a hanging thread may still be uploading an image
            self._pins.close()
        return hanging

    def running_threads(self) -> list[str]:
        """Names of the running threads; after :meth:`stop`, those that hang."""
        return self._engine.running_threads()

    def failed_threads(self) -> list[str]:
        """Names of threads that ended with an error."""
        return self._engine.failed_threads()

    def _on_result(self, result: Result) -> None:
        self._outcomes.result(_number(result.frame), result.dnn, result.output, result.timing)

    def _on_drop(self, drop: Drop) -> None:
        self._outcomes.drop(_number(drop.frame), drop.dnn, drop.reason, drop.message)


def set_runtime(config: NodeConfig, pipeline: Pipeline | None, dnn: str, name: str, value: Any) -> None:
    """Set a runtime parameter in the settings, and in the decoder if it is one of its attributes.

    name: without `dnn.<dnn>.`.
    """
    output, field = assign(config.dnns[dnn], name, value)
    if pipeline is not None and field in _DECODER_PARAMETERS and output in pipeline.dnns[dnn].outputs:
        setattr(pipeline.dnns[dnn].outputs[output].decoder, field, value)


def _number(frame: Frame) -> int:
    assert isinstance(frame.context, int)
    return frame.context


def _with_settings(task: DnnTask, settings: DnnConfig) -> DnnTask:
    """The task with the current scheduling parameters."""
    return replace(
        task,
        priority=settings.priority,
        deadline_ns=ms_to_ns(settings.deadline_ms) or None,
        max_age_ns=ms_to_ns(settings.max_age_ms) or None,
    )
