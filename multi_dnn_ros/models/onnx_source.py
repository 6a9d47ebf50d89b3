"""ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extras import MissingExtra, optional
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.file_source import source_of_file
from multi_dnn_ros.models.onnx_file import check_external_data, check_operators
from multi_dnn_ros.models.onnx_shapes import fix_shapes
from multi_dnn_ros.models.registry import ModelRequest, ModelSource


def onnx_source(request: ModelRequest) -> Source:
    """The network of an ONNX file, as PyTorch modules. ModelError: damaged, or an operator without counterpart."""
    path, outline = Path(request.name), request.outline
    try:
        with optional(f"{path}: an ONNX file"):
            import onnx
            import onnx2torch
    except MissingExtra as error:
        raise ModelError(str(error)) from None
    module: Any = nn.Module()
    try:
        model = onnx.load(path, load_external_data=not outline)
        if outline:
            check_operators(model)
            check_external_data(model, path.parent)
        else:
            module = onnx2torch.convert(model).eval()
            fix_shapes(module)
    except NotImplementedError as error:
        raise ModelError(f"{path}: an operator that onnx2torch does not have: {summarize_error(error)}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as ONNX: {type(error).__name__}: {summarize_error(error)}") from None
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs, outputs = (
        [
            tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
            for value in values
            if value.name not in constants
        ]
        for values in (model.graph.input, model.graph.output)
    )
    # A network without shapes for its outputs is valid.
    return source_of_file(path, module, inputs, outputs if all(outputs) else None)


SPEC = ModelSource(".onnx", onnx_source, form="an .onnx file")
