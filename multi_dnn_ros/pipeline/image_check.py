"""Compares what a DNN finds in images, as it is served, with what its original finds (parameter `check_images`).

The other checks compare numbers: each job with float32 on noise, int8 on calibration images. They do not tell whether
boxes and lane lines stay the same, and decomposition changes the numbers by more than any tolerance.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.models.builtin import is_builtin
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_network import OnnxNetwork, run_network
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.pipeline.calibration import CalibrationError, calibration_files, named_images
from multi_dnn_ros.pipeline.choices import ConfigError
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.agreement import Agreement
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.results import OutputError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: One image is enough for a comparison of results.
_MIN_IMAGES = 1
#: Precisions that are float32 already, so that there is nothing to fall back to.
_FLOAT32 = ("auto", "fp32")


def image_check_problems(name: str, settings: DnnConfig, *, onnx: bool) -> Iterator[str]:
    """A line for each parameter of the check that cannot be used. onnx: whether the DNN runs as an ONNX graph."""
    if not settings.check_images:
        if settings.check_against:
            yield (
                f"parameter dnn.{name}.check_against is '{settings.check_against}', but check_images is empty: give a "
                "folder of images for the comparison"
            )
        return
    if settings.outputs:
        yield (
            f"parameter dnn.{name}.check_images is '{settings.check_images}'; it cannot be used with several results "
            f"(parameter dnn.{name}.outputs)"
        )
    try:
        calibration_files(settings.check_images, _MIN_IMAGES)
    except CalibrationError as error:
        yield f"parameter dnn.{name}.check_images is '{settings.check_images}': {error}"
    if settings.check_against:
        try:
            load_dnn(name, _of_original(settings, settings.check_against), onnx=onnx)
        except ModelError as error:
            yield from (f"parameter dnn.{name}.check_against: {line}" for line in str(error).splitlines())


@dataclass(frozen=True)
class ImageCheck:
    """The comparison of one DNN. against: name of the original; expected: results of the original for the images."""

    dnn: Dnn
    settings: DnnConfig
    against: str
    images: list[npt.NDArray[np.uint8]]
    expected: list[Any]

    def agreement(self, task: DnnTask, device: torch.device) -> Agreement | None:
        """The agreement of the results of `task`, the DNN as it is served, with the expected ones.

        None, with a warning, if `task` has no valid result for an image. Some precisions give NaN only for real images.
        """
        compare = RESULT_KINDS.get(self.dnn.result_kind).agreement
        assert compare is not None  # checked by _prepare
        total = Agreement()
        for image, expected in zip(self.images, self.expected, strict=True):
            try:
                found = task.result(image if task.arrays else _tensor(image, device))
            except (OutputError, FloatingPointError) as error:
                log.warning("dnn.%s: no valid result for an image of check_images: %s", self.dnn.name, error)
                return None
            total = total.plus(compare(found, expected))
        return total


def checked_on_images(
    dnn: Dnn,
    settings: DnnConfig,
    task: DnnTask,
    device: torch.device,
    progress: Callable[[str], None],
    in_float32: Callable[[], DnnTask],
) -> DnnTask:
    """`task`, or that of `in_float32` if the results of `task` on `check_images` agree less than `check_agreement`.

    The agreement is logged. Raises ConfigError if the results in float32 do not agree either, or cannot be compared.
    """
    progress(f"comparing the results of {dnn.name} on {settings.check_images}")
    check = _prepare(dnn, settings)
    found = check.agreement(task, device)
    text = _text(check, found, settings.precision)
    if _agrees(found, settings):
        log.info("%s", text)
        return task
    if settings.precision in _FLOAT32:
        raise ConfigError(f"{text}; required: {settings.check_agreement:g} (parameter dnn.{dnn.name}.check_agreement)")
    log.warning("%s; required: %g; the DNN is prepared in float32", text, settings.check_agreement)
    task = in_float32()
    found = check.agreement(task, device)
    text = _text(check, found, "float32")
    if not _agrees(found, settings):
        raise ConfigError(f"{text}; required: {settings.check_agreement:g} (parameter dnn.{dnn.name}.check_agreement)")
    log.info("%s", text)
    return task


def _agrees(found: Agreement | None, settings: DnnConfig) -> bool:
    return found is not None and found.share >= settings.check_agreement


def _text(check: ImageCheck, found: Agreement | None, precision: str) -> str:
    images = f"{len(check.images)} image(s) of {check.settings.check_images}"
    outcome = "no valid result for an image"
    if found is not None:
        outcome = (
            f"agreement {found.share:.3f} ({found.both} results in common; {found.first} of dnn.{check.dnn.name}, "
            f"{found.second} of {check.against})"
        )
    return f"dnn.{check.dnn.name} with precision {precision}, compared with {check.against} on {images}: {outcome}"


def _prepare(dnn: Dnn, settings: DnnConfig) -> ImageCheck:
    """Load the original and run it on the images. Raises ConfigError."""
    where = f"parameter dnn.{dnn.name}.check_images is '{settings.check_images}'"
    if RESULT_KINDS.get(dnn.result_kind).agreement is None:
        raise ConfigError(f"{where}, but results of kind '{dnn.result_kind}' cannot be compared; allowed: ''")
    is_onnx = isinstance(dnn.module, OnnxNetwork)
    model = settings.check_against or _known_original(dnn.name, settings, onnx=is_onnx)
    try:
        original = load_dnn(dnn.name, _of_original(settings, model), onnx=is_onnx) if model else on_cpu(dnn)
    except ModelError as error:
        raise ConfigError(f"parameter dnn.{dnn.name}.check_against is '{model}': {error}") from None
    if original.result_kind != dnn.result_kind:
        raise ConfigError(
            f"parameter dnn.{dnn.name}.check_against is '{model}', whose results are {original.result_kind}; "
            f"those of {settings.model} are {dnn.result_kind}"
        )
    try:
        named = named_images(settings.check_images, _MIN_IMAGES)
    except CalibrationError as error:
        raise ConfigError(f"{where}: {error}") from None
    expected = []
    for file, image in named:
        try:
            expected.append(_eager(original, image))
        except OutputError as error:
            raise ConfigError(f"{where}: {file}: {model or settings.model} in float32: {error}") from None
        except ValueError as error:  # the image does not contain the DNN's crop
            raise ConfigError(f"{where}: {file}: {error}") from None
    images = [image for _, image in named]
    return ImageCheck(dnn, settings, model or f"{settings.model} in float32", images, expected)


def on_cpu(dnn: Dnn) -> Dnn:
    """A copy of the DNN on the CPU: its prepared jobs share its parameters, and may have moved them to a GPU."""
    return dnn if isinstance(dnn.module, OnnxNetwork) else replace(dnn, module=copy.deepcopy(dnn.module).to("cpu"))


def _of_original(settings: DnnConfig, model: str) -> DnnConfig:
    """The parameters of the original: those of the DNN, except for those that belong to its model."""
    changes = {"weights": "default", "num_classes": 0, "decoder": "auto", "input_width": 0, "input_height": 0}
    if is_builtin(model):
        changes["labels"] = []
    return settings.model_copy(update={"model": model, **changes})


def _known_original(name: str, settings: DnnConfig, *, onnx: bool) -> str:
    """The built-in network from which the model was decomposed; empty if there is none."""
    original = load_source(name, settings, onnx=onnx).original
    return original if is_builtin(original) else ""


def _eager(dnn: Dnn, image: npt.NDArray[np.uint8]) -> Any:
    """The result of the DNN on the CPU in float32."""
    return dnn.results(run_network(dnn.module, *dnn.array_inputs(image)), (image.shape[0], image.shape[1]))


def _tensor(image: npt.NDArray[np.uint8], device: torch.device) -> torch.Tensor:
    import torch

    return torch.from_numpy(image).to(str(device))
