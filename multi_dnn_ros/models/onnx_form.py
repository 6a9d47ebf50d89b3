"""The ONNX form of a network that is no .onnx file: exported once by PyTorch, and kept with what its source knows.

The built-in networks are shipped in this form, beside their weights; ``python -m multi_dnn_ros.models.onnx_form``
writes them. That of another model is kept in the user's cache folder, so that PyTorch is needed only when a model is
used for the first time. The name of a kept file is a checksum of the model.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.decoders.anchor import AnchorHead
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ExportError, ModelError
from multi_dnn_ros.models.onnx_graph import keep, read_kept
from multi_dnn_ros.models.onnx_network import OnnxNetwork, run_network
from multi_dnn_ros.models.registry import BUILTIN, ModelRequest, ModelSource
from multi_dnn_ros.settings.forms import path_problem

if TYPE_CHECKING:
    from torch import nn

#: Key of the metadata in the file that holds the fields of the Source, as JSON. Another format has another key.
_KEY = "multi_dnn_ros network 1"
_FIELDS = ("size", "decoder", "labels", "preprocess", "fixed_size", "classes", "score_threshold")


def onnx_form(source: ModelSource, request: ModelRequest) -> Source:
    """As `source.load`, with an OnnxNetwork for the input size of the request.

    Without an input size, or with one that the network does not take, the PyTorch module is returned, for which the
    caller finds the reason. Raises ModelError, also if the network cannot be exported.
    """
    path = _kept_path(source, request)
    model = _shipped(source, request) or (path and read_kept(path))
    if model is not None:
        return _described(model, source, request, path)
    loaded = source.load(request)
    config, own = request.config, loaded.size or (0, 0)
    size = config.input_width or own[0], config.input_height or own[1]
    if isinstance(loaded.module, OnnxNetwork) or not all(size) or (loaded.fixed_size and size != own):
        return loaded
    try:
        run_network(loaded.network, np.zeros((1, 3, size[1], size[0]), np.float32))
    except Exception:  # reported by the caller, who runs it again
        return loaded
    try:
        model = _exported(loaded.network, size)
    except ExportError as error:
        raise ModelError(
            f"{request.where}model is '{config.model}', which cannot be exported to ONNX, as which a CPU runs it: "
            f"{error}; backend 'eager' runs it by PyTorch"
        ) from None
    _describe(model, loaded, size)
    if path:
        keep(path, model)
    return _described(model, source, request, path)


def _described(model: Any, source: ModelSource, request: ModelRequest, path: Path | None) -> Source:
    """The Source that `_describe` wrote into the graph."""
    (text,) = (entry.value for entry in model.metadata_props if entry.key == _KEY)
    stated = json.loads(text)
    fields = {name: _as_tuple(stated[name]) for name in _FIELDS}
    fields["preprocess"] = {key: _as_tuple(value) for key, value in stated["preprocess"].items()}
    detector = _head(stated["detector"]) if "detector" in stated else None
    shapes = tuple(tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim) for value in model.graph.output)
    load = replace(request, onnx=False)

    def for_images(images: int) -> Any:
        shipped = _shipped(source, request)
        if shipped is not None:  # its operators take any number of images
            for value in (*shipped.graph.input, *shipped.graph.output):
                value.type.tensor_type.shape.dim[0].dim_value = images
            del shipped.graph.value_info[:]
            return shipped
        kept = path and path.with_stem(f"{path.stem[:-2]}-{images}")
        batched = kept and read_kept(kept)
        if batched is None:
            side = model.graph.input[0].type.tensor_type.shape.dim
            batched = _exported(source.load(load).network, (side[3].dim_value, side[2].dim_value), images)
            if kept:
                keep(kept, batched)
        return batched

    return Source(
        OnnxNetwork(model, for_images, lambda: source.load(load).network),
        detector=detector,
        outputs=shapes if detector is None and all(shape and all(shape) for shape in shapes) else None,
        **fields,
    )


def _describe(model: Any, source: Source, size: tuple[int, int]) -> None:
    from onnx import helper

    fields: dict[str, Any] = {name: getattr(source, name) for name in _FIELDS}
    if source.detector is not None:
        from multi_dnn_ros.models.torchvision_detector import anchor_head

        head = anchor_head(source.detector, (size[1], size[0]))
        anchors = base64.b64encode(head.anchors.astype("<f4").tobytes()).decode()
        fields["detector"] = {**asdict(replace(head, anchors=np.zeros(0, np.float32))), "anchors": anchors}
    helper.set_model_props(model, {_KEY: json.dumps(fields)})


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _head(fields: dict[str, Any]) -> AnchorHead:
    fields = {name: _as_tuple(value) for name, value in fields.items()}
    anchors = np.frombuffer(base64.b64decode(fields.pop("anchors")), "<f4").reshape(-1, 4)
    return AnchorHead(anchors=anchors, shapes=tuple(map(tuple, fields.pop("shapes"))), **fields)


def _exported(module: nn.Module, size: tuple[int, int], images: int = 1) -> Any:
    import torch

    from multi_dnn_ros.models.onnx_export import export

    return export(module, (torch.zeros(images, 3, size[1], size[0]),), compare=images == 1)


def _shipped(source: ModelSource, request: ModelRequest) -> Any:
    """The form that comes with the model; None: there is none."""
    import onnx

    path = source.onnx_file(request.name) if source.onnx_file is not None else None
    return onnx.load(path) if path is not None and path.is_file() else None


def _kept_path(source: ModelSource, request: ModelRequest) -> Path | None:
    """The file in the cache, named after all that the network depends on; None: the source cannot say it."""
    config, is_file = request.config, source.name.startswith(".")
    if not (is_file or source.rebuilds):
        return None
    facts = [source.name if is_file else config.model, config.weights, config.num_classes]
    facts += [config.input_width, config.input_height]
    digest = hashlib.sha256(json.dumps([_KEY, *facts]).encode())
    for file in (*([request.name] if is_file else ()), *([config.weights] if source.takes_weights else ())):
        if not path_problem(file, "file"):
            try:
                digest.update(Path(file).expanduser().read_bytes())
            except OSError:  # reported by the source
                return None
    return cache_folder() / "onnx" / f"{digest.hexdigest()[:32]}-1.onnx"


def main() -> None:
    """Write the ONNX form of the built-in networks beside their weights."""
    import onnx

    from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
    from multi_dnn_ros.settings.schema import DnnConfig

    assert BUILTIN.onnx_file is not None
    for name in SCORE_THRESHOLDS:
        source = BUILTIN.load(ModelRequest("", name, DnnConfig(role="network", model=f"builtin:{name}")))
        assert source.size is not None
        model = _exported(source.network, source.size)
        _describe(model, source, source.size)
        onnx.save(model, BUILTIN.onnx_file(name))


if __name__ == "__main__":
    main()
