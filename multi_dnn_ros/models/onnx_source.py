"""Model source of .onnx files."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import nn

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extras import MissingExtra, optional
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.onnx_intake.conversion import check_operators, convert
from multi_dnn_ros.models.onnx_intake.preparation import Prepared, prepare
from multi_dnn_ros.models.onnx_intake.refusal import Refusal
from multi_dnn_ros.models.onnx_intake.verification import verify
from multi_dnn_ros.models.registry import ModelRequest, ModelSource
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.image_files import image_files

log = logging.getLogger(__name__)


def onnx_source(request: ModelRequest) -> Source:
    """The network of an ONNX file as a PyTorch module. Raises ModelError, which says in one line why it is refused."""
    path, config = Path(request.name), request.config
    try:
        with optional(f"{path}: an ONNX file"):
            import onnx2torch  # noqa: F401
        prepared = prepare(path, (config.input_width, config.input_height), weights=not request.outline)
        if prepared.described.task == "classify" and not request.classifiers:
            raise Refusal("is a classifier by its metadata; allowed: detectors and segmentation networks")
        module: nn.Module = nn.Module()
        if request.outline:
            check_operators(prepared.model)
        else:
            module = convert(prepared.model)
            verify(path, prepared, module, _image(config))
    except MissingExtra as error:
        raise ModelError(str(error)) from None
    except Refusal as error:
        raise ModelError(f"{path}: {error}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as ONNX: {type(error).__name__}: {summarize_error(error)}") from None
    if prepared.cut:
        log.info(
            "%s: cut before its non-maximum suppression, which the decoder performs instead; outputs: %s", path,
            ", ".join(f"{name} {shape}" for name, shape in prepared.outputs),
        )  # fmt: skip
    return _source(prepared, module)


def _image(config: DnnConfig) -> Path | None:
    """An image of the DNN's camera; None: there is none. A wrong folder is reported when the parameter is checked."""
    if not config.calibration_images:
        return None
    try:
        return next(iter(image_files(Path(config.calibration_images).expanduser())), None)
    except (OSError, RuntimeError):
        return None


def _source(prepared: Prepared, module: nn.Module) -> Source:
    described, size = prepared.described, prepared.image.size
    preprocess = dict(described.preprocess)
    if prepared.image.integers:  # it takes values from 0 to 255
        preprocess = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255), **preprocess}
    rows_of_6 = len(prepared.outputs) == 1 and prepared.outputs[0][1][2:] == (6,)
    return Source(
        module,
        size,
        described.decoder_of_rows if rows_of_6 and described.decoder_of_rows else described.decoder,
        described.labels,
        preprocess,
        fixed_size=size is not None,
        classes=len(described.labels),
        outputs=tuple(shape for _, shape in prepared.outputs),
        output_names=tuple(name for name, _ in prepared.outputs),
    )


SPEC = ModelSource(".onnx", onnx_source, form="an .onnx file")
