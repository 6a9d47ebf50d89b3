"""Model source of .onnx files, and what such a file declares."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extras import MissingExtra
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.onnx_graph import subgraphs
from multi_dnn_ros.models.onnx_intake.preparation import prepare
from multi_dnn_ros.models.onnx_network import OnnxNetwork
from multi_dnn_ros.models.registry import ModelRequest

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Maximum length of a message, since attributes of a file can be megabytes of text; and of the end that is kept.
_MAX_LENGTH, _END_LENGTH = 1000, 300


def onnx_source(request: ModelRequest) -> Source:
    """The network of an ONNX file: as it is, or as a PyTorch module if the request is for one.

    Raises ModelError, which says in one line why the file is refused.
    """
    path, config = Path(request.name), request.config
    size = (config.input_width, config.input_height)
    prepared = _read(path, lambda: prepare(path, size))
    described, outputs = prepared.described, prepared.outputs
    if described.task == "classify" and not request.classifiers:
        raise ModelError(f"{path}: is a classifier by its metadata; allowed: detectors and segmentation networks")
    if prepared.cut:
        shown = ", ".join(f"{name} {shape}" for name, shape in outputs)
        log.info("%s: cut before its non-maximum suppression, which the decoder performs; outputs: %s", path, shown)

    def convert_now() -> Any:
        from multi_dnn_ros.models.onnx_intake.conversion import convert  # needs PyTorch

        return convert(prepared.model)

    network = OnnxNetwork(
        prepared.model,
        lambda images: _read(path, lambda: prepare(path, size, images)).model,
        lambda: _read(path, convert_now),
    )
    preprocess = dict(described.preprocess)
    if prepared.integers:  # it takes values from 0 to 255
        preprocess = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255), **preprocess}
    rows_of_6 = len(outputs) == 1 and outputs[0][1][2:] == (6,)
    return Source(
        network if request.onnx else network.to_torch(),
        prepared.size,
        described.decoder_of_rows if rows_of_6 and described.decoder_of_rows else described.decoder,
        described.labels,
        preprocess,
        fixed_size=prepared.size is not None,
        classes=len(described.labels),
        outputs=tuple(shape for _, shape in outputs),
        output_names=tuple(name for name, _ in outputs),
    )


def _read(path: Path, step: Callable[[], T]) -> T:
    """The result of `step`, whose errors become ModelErrors of one line that name the file."""
    try:
        return step()
    except MissingExtra as error:
        raise ModelError(str(error)) from None
    except ModelError as error:
        text = str(error)
    except Exception as error:
        text = f"cannot be read as ONNX: {type(error).__name__}: {summarize_error(error)}"
    if len(text) > _MAX_LENGTH:
        text = f"{text[: _MAX_LENGTH - _END_LENGTH - 3]}...{text[-_END_LENGTH:]}"
    raise ModelError(f"{path}: " + "".join(each if each.isprintable() else "?" for each in text))


def declared(path: Path) -> dict[str, Any]:
    """What an ONNX file declares, read without its weights: its producer, opsets by domain, number of uses of each
    operator (those inside If and Loop included), inputs and outputs as text. Raises ModelError.
    """
    import onnx

    from multi_dnn_ros.decoders.layout import shape_text

    def text(value: Any) -> str:
        tensor = value.type.tensor_type
        shape = shape_text(tuple(axis.dim_value for axis in tensor.shape.dim)) if tensor.HasField("shape") else "?"
        return f"{value.name} {shape} {onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)}"

    def read() -> dict[str, Any]:
        model = onnx.load(path, load_external_data=False)
        nodes = [node for graph in (model.graph, *(inner for node in model.graph.node for inner in subgraphs(node)))
                 for node in graph.node]  # fmt: skip
        operators = Counter(f"{node.domain}.{node.op_type}".strip(".") for node in nodes)
        constants = {tensor.name for tensor in model.graph.initializer}
        return {
            "producer": f"{model.producer_name} {model.producer_version}".strip(),
            "opsets": {entry.domain: entry.version for entry in model.opset_import},
            "operators": dict(operators.most_common()),
            "inputs": [text(value) for value in model.graph.input if value.name not in constants],
            "outputs": [text(value) for value in model.graph.output],
        }

    return _read(path, read)
