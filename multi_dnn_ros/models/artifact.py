"""The file that compression and training write for the node: weights, and what is needed to rebuild the network.

Two forms. ``.safetensors`` for networks that the package builds from a name: the state dict, and in the header, as JSON
strings, the fields of a Description except `preprocess` and `decoder`, which follow from the name. ``.pt2`` for
networks that came as a file: the exported program, with all fields in its extra file ``multi_dnn_ros.json``. Reading a
file never executes code from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import fx, nn

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.decomposed import FORMAT as FORMAT
from multi_dnn_ros.models.decomposed import Description as Description
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.registry import source_of
from multi_dnn_ros.models.trace import quiet
from multi_dnn_ros.models.weights import non_finite_tensor

_EXTRA = "multi_dnn_ros.json"


def is_built_from_a_name(model: str) -> bool:
    """Whether `model` can be rebuilt from its name alone.

    Its artifact is then a .safetensors file, otherwise a .pt2 file.
    """
    source = source_of(model) if ":" in model else None
    return source is not None and source.rebuilds


def suffix_of(model: str) -> str:
    """File name suffix of an artifact made from `model`."""
    return ".safetensors" if is_built_from_a_name(model) else ".pt2"


def save_artifact(path: Path, module: nn.Module, description: Description) -> None:
    """Write the network atomically: an existing file is replaced when the new one is complete, and kept on failure.

    module: float32, on any device, in eval mode. For .safetensors it must have the layers of `description.model` with
    `description.plan` applied (the whole torchvision detector, including its transform); for .pt2 it may be any module
    that takes one image (1, 3, height, width). Raises ModelError for a suffix that does not fit the model or weights
    that are not finite (the message names the file), and for a network that cannot be exported (it names the model);
    OSError if the file cannot be written.
    """
    expected = suffix_of(description.model)
    if path.suffix != expected:
        raise ModelError(f"{path}: an artifact made from {description.model} must be a {expected} file")
    if (name := non_finite_tensor(module.state_dict())) is not None:
        raise ModelError(f"{path}: not written, because the weights {name} are not finite")
    from safetensors import SafetensorError

    program = _exported(module, description) if expected == ".pt2" else None
    # Preprocessing and decoder follow from the model's name, as do the layers.
    fields = description.model_dump(mode="json", exclude={"preprocess", "decoder"})
    try:
        with atomic_write(path, to_disk=True) as temporary:
            if program is not None:
                torch.export.save(program, temporary, extra_files={_EXTRA: description.model_dump_json()})
            else:
                tensors = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
                write_safetensors(temporary, {name: value.contiguous() for name, value in tensors.items()}, fields)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise OSError(f"{path} cannot be written: {summarize_error(error)}") from None


def write_safetensors(file: Path, tensors: Mapping[str, torch.Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors (on the CPU) to `file`, with each value of `header` as JSON in the file's header.

    The file becomes readable for all users, such as another user's node; safetensors creates it for its owner only.
    """
    from safetensors.torch import save_file

    save_file(dict(tensors), file, metadata={name: json.dumps(value) for name, value in header.items()})
    file.chmod(0o644)


def read_description(path: Path) -> Description | None:
    """The description stored in the file; None for a .safetensors or .pt2 file that is not an artifact.

    Raises ModelError for a damaged file. Check a .pt2 file with weights.check_archive first.
    """
    where = _EXTRA if path.suffix == ".pt2" else "header"
    text = _pt2_text(path) if path.suffix == ".pt2" else _safetensors_text(path)
    if text is None:
        return None
    try:
        return Description.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"]:
            where += " field " + ".".join(str(part) for part in first["loc"])
        raise ModelError(f"{path}: {where} is {str(first['input'])[:80]!r}: {first['msg']}") from None


def _safetensors_text(path: Path) -> str | None:
    """The description as JSON: each field is JSON in the header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            header: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: cannot be read as weights: {summarize_error(error)}") from None
    if "format" not in header or "plan" not in header:
        return None
    return f"{{{', '.join(f'{json.dumps(key)}: {text}' for key, text in header.items())}}}"


def _pt2_text(path: Path) -> str | None:
    reader = torch._C.PyTorchFileReader(str(path))
    record = f"extra/{_EXTRA}"
    if record not in reader.get_all_records():
        return None
    return bytes(reader.get_record(record)).decode(errors="replace")


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and values, sorted by name: equal weights give equal digests on any machine."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))  # contiguous for any strides
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def network_checksum(module: nn.Module) -> str:
    """Checksum of a network's structure and weights, by which caches find what was made for it."""
    digest = hashlib.sha256(repr(module).encode())
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            digest.update(part.code.encode())
    return hashlib.sha256(digest.digest() + weights_digest(module.state_dict()).encode()).hexdigest()


def _exported(module: nn.Module, description: Description) -> torch.export.ExportedProgram:
    width, height = description.input_size
    try:
        where = next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
        with quiet(), torch.no_grad():
            return torch.export.export(module, (torch.zeros(1, 3, height, width, device=where),), strict=False)
    except Exception as error:
        raise ModelError(f"{description.model} cannot be exported: {summarize_error(error)}") from None
