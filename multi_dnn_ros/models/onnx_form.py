"""The ONNX form of a network that is no .onnx file: exported once by PyTorch, and kept with what its source knows.

The built-in networks are shipped in this form, beside their weights; ``python -m multi_dnn_ros.models.onnx_form``
writes them. That of another model is kept in the user's cache folder under a hash of its file, so that PyTorch is
needed only when a model is used for the first time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.decoders.anchor import AnchorHead
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ExportError, ModelError
from multi_dnn_ros.models.onnx_network import OnnxNetwork, run_network
from multi_dnn_ros.models.registry import ModelRequest, ModelSource

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

#: Key of the metadata in the file that holds the fields of the Source, as JSON. Another format has another key.
_KEY = "multi_dnn_ros network 1"
_FIELDS = ("size", "decoder", "labels", "preprocess", "fixed_size", "classes", "score_threshold", "original")


def onnx_form(source: ModelSource, request: ModelRequest) -> Source:
    """As `source.load`, with an OnnxNetwork for the input size of the request.

    Without an input size, or with one that the network does not take, the PyTorch module is returned, for which the
    caller finds the reason. Raises ModelError, also if the network cannot be exported.
    """
    path = _path(source, request)
    network = _Network(source, request, path)
    found = None if path is None else _read(path, network)
    if found is not None:
        return found
    loaded = source.load(request)
    config, own = request.config, loaded.size or (0, 0)
    size = config.input_width or own[0], config.input_height or own[1]
    if isinstance(loaded.module, OnnxNetwork) or not all(size) or (loaded.fixed_size and size != own):
        return loaded
    module = loaded.network
    try:
        run_network(module, np.zeros((1, 3, size[1], size[0]), np.float32))
    except Exception:  # reported by the caller, who runs it again
        return loaded
    try:
        model = _exported(module, size)
    except ExportError as error:
        raise ModelError(
            f"{request.where}model is '{config.model}', which cannot be exported to ONNX, as which a CPU runs it: "
            f"{error}; backend 'eager' runs it by PyTorch"
        ) from None
    kept = replace(
        loaded, module=OnnxNetwork(model, network.for_images, lambda: module), outputs=_outputs(loaded, model)
    )
    if loaded.detector is not None:
        from multi_dnn_ros.models.torchvision_detector import anchor_head

        kept = replace(kept, detector=anchor_head(loaded.detector, (size[1], size[0])))
    if path is not None:
        _write(path, kept)
    return kept


class _Network:
    """The parts of an OnnxNetwork that are made when they are needed. path: of its file; None: it is not kept."""

    def __init__(self, source: ModelSource, request: ModelRequest, path: Path | None) -> None:
        self._source = source
        self._request = replace(request, onnx=False)
        self._path = path
        shipped = _shipped(source, request)
        self._shipped = shipped if path == shipped else None

    def to_torch(self) -> nn.Module:
        return self._source.load(self._request).network

    def for_images(self, images: int) -> Any:
        """The graph for a batch: the shipped one with another first axis, otherwise exported and kept as well."""
        import onnx
        from onnx import helper

        if self._shipped is not None:
            return _with_images(onnx.load(self._shipped), images)
        kept = None if self._path is None else self._path.with_name(f"{self._path.stem}-{images}.onnx")
        if kept is not None and kept.is_file():
            try:
                model = onnx.load(kept)
                if any(entry.key == _KEY for entry in model.metadata_props):  # the end of the file
                    return model
                log.warning("%s is not complete and is exported again", kept)
            except Exception as error:  # protobuf's own errors
                log.warning("%s cannot be read and is exported again: %s", kept, summarize_error(error))
        source = self._source.load(self._request)
        config, own = self._request.config, source.size or (0, 0)
        model = _exported(source.network, (config.input_width or own[0], config.input_height or own[1]), images)
        if kept is not None:
            helper.set_model_props(model, {_KEY: json.dumps({"images": images})})
            _save(kept, model)
        return model


def _with_images(model: Any, images: int) -> Any:
    """The graph of a network whose operators take any number of images, for this number."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = images
    del model.graph.value_info[:]
    return model


def _outputs(source: Source, model: Any) -> tuple[tuple[int, ...], ...] | None:
    """Shapes of the outputs; None for a detector, and unless all are known."""
    shapes = tuple(tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim) for value in model.graph.output)
    return shapes if source.detector is None and all(shape and all(shape) for shape in shapes) else None


def _exported(module: nn.Module, size: tuple[int, int], images: int = 1) -> Any:
    import torch

    from multi_dnn_ros.models.onnx_export import export, export_network

    example = (torch.zeros(images, 3, size[1], size[0]),)
    return export_network(module, example).model if images == 1 else export(module, example)


def _shipped(source: ModelSource, request: ModelRequest) -> Path | None:
    path = source.onnx_file(request.name) if source.onnx_file is not None else None
    return path if path is not None and path.is_file() else None


def _path(source: ModelSource, request: ModelRequest) -> Path | None:
    """The file that holds the ONNX form; None: the source cannot say what the network depends on, or a file that it
    depends on cannot be read.
    """
    config = request.config
    if (shipped := _shipped(source, request)) is not None:
        return shipped
    if not (source.name.startswith(".") or source.rebuilds):
        return None
    facts = [config.model.partition(":")[0], request.name, config.weights, str(config.num_classes)]
    files = [Path(request.name)] if source.name.startswith(".") else []
    if source.file is not None:
        files.append(source.file(request.name))
    digest = hashlib.sha256(_KEY.encode())
    try:
        if source.takes_weights:
            files.append(Path(config.weights).expanduser())
        for file in files:
            if file.is_file():
                facts = [fact for fact in facts if Path(fact) != file]
                with file.open("rb") as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest() if hasattr(hashlib, "file_digest")
                                  else hashlib.sha256(content.read()).digest())  # fmt: skip
    except (OSError, RuntimeError):  # no permission, no such user: reported by the source
        return None
    digest.update(json.dumps([*facts, config.input_width, config.input_height]).encode())
    return cache_folder() / "onnx" / f"{digest.hexdigest()[:32]}.onnx"


def _write(path: Path, source: Source) -> None:
    from onnx import helper

    fields: dict[str, Any] = {name: getattr(source, name) for name in _FIELDS}
    if isinstance(source.detector, AnchorHead):
        anchors = base64.b64encode(source.detector.anchors.astype("<f4").tobytes()).decode()
        fields["detector"] = {**asdict(replace(source.detector, anchors=np.zeros(0, np.float32))), "anchors": anchors}
    model = source.module.model
    helper.set_model_props(model, {_KEY: json.dumps(fields)})
    _save(path, model)


def _save(path: Path, model: Any) -> None:
    try:
        with atomic_write(path, to_disk=True) as temporary:
            temporary.write_bytes(model.SerializeToString())
    except OSError as error:
        log.warning("the ONNX form is not kept, so that it is exported again: %s cannot be written: %s", path, error)


def _read(path: Path, network: _Network) -> Source | None:
    """The content of a file of `_write`; None: there is none, or it is damaged."""
    import onnx

    try:
        model = onnx.load(path)
        (text,) = (entry.value for entry in model.metadata_props if entry.key == _KEY)
        fields = json.loads(text)
        size = tuple(fields.pop("size")) if fields.get("size") else fields.pop("size", None)
        preprocess = {key: tuple(value) if isinstance(value, list) else value
                      for key, value in fields.pop("preprocess").items()}  # fmt: skip
        detector = _head(fields.pop("detector")) if "detector" in fields else None
        labels = tuple(fields.pop("labels"))
        found = Source(
            OnnxNetwork(model, network.for_images, network.to_torch), size=size, preprocess=preprocess, labels=labels,
            detector=detector, **fields,
        )  # fmt: skip
        return replace(found, outputs=_outputs(found, model))
    except FileNotFoundError:
        return None
    except Exception as error:  # protobuf's own errors, and fields of another version of this package
        log.warning("%s cannot be read and is exported again: %s", path, summarize_error(error))
        return None


def _head(fields: dict[str, Any]) -> AnchorHead:
    anchors = np.frombuffer(base64.b64decode(fields.pop("anchors")), "<f4").reshape(-1, 4)
    shapes = tuple(map(tuple, fields.pop("shapes")))
    lists: Callable[[Any], Any] = lambda value: tuple(value) if isinstance(value, list) else value  # noqa: E731
    return AnchorHead(anchors=anchors, shapes=shapes, **{name: lists(value) for name, value in fields.items()})


def main() -> None:
    """Write the ONNX form of the built-in networks beside their weights."""
    from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
    from multi_dnn_ros.models.own_sources import BUILTIN
    from multi_dnn_ros.settings.schema import DnnConfig

    assert BUILTIN.onnx_file is not None
    for name in SCORE_THRESHOLDS:
        request = ModelRequest("", name, DnnConfig(role="network", model=f"builtin:{name}"))
        source = BUILTIN.load(request)
        assert source.size is not None
        network = _Network(BUILTIN, request, None)
        form = OnnxNetwork(_exported(source.network, source.size), network.for_images, network.to_torch)
        _write(BUILTIN.onnx_file(name), replace(source, module=form))


if __name__ == "__main__":
    main()
