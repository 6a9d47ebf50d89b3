"""What the structure of an ONNX file shows before it is converted: operators without a converter, missing weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional


def check_operators(model: Any) -> None:
    """NotImplementedError names every operator of an onnx.ModelProto that onnx2torch cannot convert."""
    with optional("an ONNX file"):
        from onnx2torch.node_converters.registry import get_converter

    versions = {entry.domain: entry.version for entry in model.opset_import}
    problems: dict[tuple[str, str], str] = {}
    for node in model.graph.node:
        try:
            get_converter(operation_type=node.op_type, domain=node.domain, version=versions[node.domain])
        except NotImplementedError as error:
            problems.setdefault((node.domain, node.op_type), str(error))
    if problems:
        raise NotImplementedError("; ".join(problems.values()))


def check_external_data(model: Any, folder: Path) -> None:
    """ValueError names the first file beside the model that lacks weights of it. folder: where the model lies."""
    with optional("an ONNX file"):
        from onnx import TensorProto

    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        file = folder / place["location"]
        if not file.is_file():
            raise ValueError(f"its weights {tensor.name} are in {file}, and there is no such file")
        end = int(place.get("offset", 0)) + int(place.get("length", 0))
        if file.stat().st_size < end:
            raise ValueError(f"its weights {tensor.name} end at byte {end} of {file}, which has {file.stat().st_size}")
