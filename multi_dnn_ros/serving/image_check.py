"""Compares what a DNN finds in images, as it is served, with what its original finds (parameter `check_images`).

The other checks compare numbers: each job with float32 on noise, int8 on calibration images. They do not tell whether
boxes and lane lines stay the same, and decomposition changes the numbers by more than any tolerance.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.models.builtin import is_builtin
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_network import OnnxNetwork, run_network
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.serving.sample_images import ImagesError, sample_files, sample_images
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.agreement import Agreement
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.results import OutputError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: One image is enough for a comparison of results.
_MIN_IMAGES = 1


def image_check_problems(name: str, settings: DnnConfig, *, onnx: bool) -> Iterator[str]:
    """A line for each parameter of the check that cannot be used. onnx: whether the DNN runs as an ONNX graph."""
    if not settings.check_images:
        if settings.check_against:
            yield (
                f"parameter dnn.{name}.check_against is '{settings.check_against}', but check_images is empty: give a "
                "folder of images for the comparison"
            )
        return
    where = f"parameter dnn.{name}.check_images is '{settings.check_images}'"
    if settings.outputs:
        yield f"{where}; it cannot be used with several results (parameter dnn.{name}.outputs)"
    try:
        sample_files(settings.check_images, _MIN_IMAGES)
    except ImagesError as error:
        yield f"{where}: {error}"
    if settings.check_against:
        try:
            load_dnn(name, _of_original(settings, settings.check_against), onnx=onnx)
        except ModelError as error:
            yield from (f"parameter dnn.{name}.check_against: {line}" for line in str(error).splitlines())


class ImageCheck:
    """The comparison of one DNN, in whose constructor the original runs on the images, in float32 on the CPU.

    dnn: not prepared yet. Raises ConfigError if its original cannot be loaded or run, or has results of another kind.
    """

    def __init__(self, dnn: Dnn, settings: DnnConfig) -> None:
        self._name, self._settings = dnn.name, settings
        where = f"parameter dnn.{dnn.name}.check_images is '{settings.check_images}'"
        self._agreement = RESULT_KINDS.get(dnn.result_kind).agreement
        if self._agreement is None:
            raise ConfigError(f"{where}, but results of kind '{dnn.result_kind}' cannot be compared; allowed: ''")
        is_onnx = isinstance(dnn.module, OnnxNetwork)
        model = settings.check_against
        if not model and is_builtin(known := load_source(dnn.name, settings, onnx=is_onnx).original):
            model = known  # the built-in network from which this one was decomposed
        try:
            original = load_dnn(dnn.name, _of_original(settings, model), onnx=is_onnx) if model else dnn
            self._images = sample_images(settings.check_images, _MIN_IMAGES)
        except ModelError as error:
            raise ConfigError(f"parameter dnn.{dnn.name}.check_against is '{model}': {error}") from None
        except ImagesError as error:
            raise ConfigError(f"{where}: {error}") from None
        if original.result_kind != dnn.result_kind:
            raise ConfigError(
                f"parameter dnn.{dnn.name}.check_against is '{model}', whose results are {original.result_kind}; "
                f"those of {settings.model} are {dnn.result_kind}"
            )
        self._against = model or f"{settings.model} in float32"
        self._expected: list[Any] = []
        for file, image in self._images:
            try:
                outputs = run_network(original.module, *original.array_inputs(image))
                self._expected.append(original.results(outputs, (image.shape[0], image.shape[1])))
            except OutputError as error:
                raise ConfigError(f"{where}: {file}: {self._against}: {error}") from None
            except ValueError as error:  # the image does not contain the DNN's crop
                raise ConfigError(f"{where}: {file}: {error}") from None

    def compare(self, task: DnnTask, device: torch.device) -> None:
        """Log the agreement of the results of `task`, the DNN as it is served. Raises ConfigError if it is less than
        `check_agreement`, or if a result is not valid: some precisions give NaN only for real images.
        """
        assert self._agreement is not None
        settings, total = self._settings, Agreement()
        text = (
            f"dnn.{self._name} with precision {settings.precision}, compared with {self._against} on "
            f"{len(self._images)} image(s) of {settings.check_images}"
        )
        for (file, image), expected in zip(self._images, self._expected, strict=True):
            try:
                found = task.result(image if task.arrays else _tensor(image, device))
            except (OutputError, FloatingPointError) as error:
                raise ConfigError(f"{text}: no valid result for {file}: {error}") from None
            total = total.plus(self._agreement(found, expected))
        text += (
            f": agreement {total.share:.3f} ({total.both} results in common; {total.first} of dnn.{self._name}, "
            f"{total.second} of {self._against})"
        )
        if total.share < settings.check_agreement:
            raise ConfigError(
                f"{text}; required: {settings.check_agreement:g} (parameter dnn.{self._name}.check_agreement); "
                f"precision auto (parameter dnn.{self._name}.precision) is float32"
            )
        log.info("%s", text)


def _of_original(settings: DnnConfig, model: str) -> DnnConfig:
    """The parameters of the original: those of the DNN, except for those that belong to its model."""
    changes = {"weights": "default", "num_classes": 0, "decoder": "auto", "input_width": 0, "input_height": 0}
    if is_builtin(model):
        changes["labels"] = []
    return settings.model_copy(update={"model": model, **changes})


def _tensor(image: Any, device: torch.device) -> torch.Tensor:
    import torch

    return torch.from_numpy(image).to(str(device))
