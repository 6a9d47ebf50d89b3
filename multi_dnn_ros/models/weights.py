"""Loads weights from files without executing code from them, and checks that a .pt2 archive holds data only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.errors import ModelError

#: Largest number of mismatches in a message.
_SHOWN = 3
_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_CONVERT = "if you trust it, convert it: safetensors.torch.save_file(model.state_dict(), ...)"

_RECORD = re.compile(
    r"(models/\w+\.json|data/weights/(weight_\d+|\w+_config\.json)|data/constants/(tensor_\d+|\w+_config\.json)"
    r"|data/sample_inputs/\w+\.pt|archive_format|archive_version|byteorder|version|\.data/\w+)"
)
#: Excluded are from_file, which maps any file into memory and can write to it, and save, which writes a file.
_OPERATION = re.compile(
    r"torch\.ops\.(aten(?!\.(from_file|save)\b)|prims|torchvision|higher_order)"
    r"(\.(?!__)\w+|\.__i?(and|or|xor|lshift|rshift)__){1,2}"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|lt|le|gt|ge|eq|ne)"
    r"|torch\.sym_(not|float|int|max|min|sum)"
)
_NAME = re.compile(r"(?!__)[\w+\-]*(\.(?!__)[\w+\-]*)*")
_SYMBOLIC = re.compile(
    r"(Symbol\('[su]\d+'|\b(Integer|Add|Mul|Max|Min|FloorDiv|CeilDiv|CleanDiv|Mod|positive|integer|nonnegative|True)\b"
    r"|-?\b\d+\b|[(), =])*"
)
_TREE = re.compile(r'(?!.*__)[\w\s\[\]{}"\\,.:\-]*')
_ALLOWED = {
    "expr_str": (_SYMBOLIC, "symbolic size"),
    "target": (_OPERATION, "operation"),
    "as_operator": (_OPERATION, "operation"),  # an argument; some operations of higher_order call it
    "in_spec": (_TREE, "name"),
    "out_spec": (_TREE, "name"),
}
#: Keys whose text is quoted or kept as a note, and is never part of generated source.
_QUOTED = ("metadata", "as_string", "guards_code", "__debug_artifacts")


def read_state_dict(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a .safetensors file, or of a .pth or .pt file read with weights_only.

    Raises
    ModelError, which names the file.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        check_stored(path)
        with warnings.catch_warnings():  # about content that is then rejected
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise ModelError(
            f"{path}: not a plain file of weights, or damaged. A pickle of anything but tensors can run code when "
            f"it is read and is refused; {_CONVERT}"
        ) from None
    except ModelError:
        raise
    except Exception as error:  # torch.load and zipfile raise arbitrary errors for damaged bytes
        raise ModelError(f"{path}: cannot be read as weights: {summarize_error(error)}") from None
    for key in ("state_dict", "model"):  # as training scripts store it
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise ModelError(f"{path}: holds {type(content).__name__}; it must map names to tensors (a state_dict)")
    for name, value in content.items():
        # PyTorch does not check the indices of a sparse tensor when it loads one: copying it could write anywhere.
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise ModelError(f"{path}: tensor {name} is {value.layout}, {value.dtype}; allowed: plain dense tensors")
    return {str(name): value for name, value in content.items()}


def check_stored(path: Path) -> None:
    """Raise ModelError for a zip archive with compressed or overlapping records.

    PyTorch stores records uncompressed, so an archive whose content is larger than the file is an attempt to exhaust
    the memory.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    compressed = [record.filename for record in records if record.compress_type != zipfile.ZIP_STORED]
    if compressed:
        raise ModelError(
            f"{path}: record {compressed[0][:80]!r} is compressed, as in TorchScript, which is code; allowed: what "
            f"torch.save and torch.export.save write; {_CONVERT}"
        )
    claimed_bytes, file_bytes = sum(record.file_size for record in records), path.stat().st_size
    if claimed_bytes > file_bytes:
        raise ModelError(f"{path}: claims records of {claimed_bytes} bytes in a file of {file_bytes}")


@contextlib.contextmanager
def no_pickles() -> Iterator[None]:
    """Disable unrestricted pickles, which some loaders of torch and torchvision request, by PyTorch's own switch."""
    before = os.environ.get(_WEIGHTS_ONLY)
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_WEIGHTS_ONLY]
        else:
            os.environ[_WEIGHTS_ONLY] = before


def load_weights(network: nn.Module, weights: Mapping[str, torch.Tensor], source: str) -> None:
    """Load `weights` into `network`.

    Raises ModelError, which names the first tensors that are missing, unknown or of another shape. Counters of batch
    norms may be missing: they are not used after training.
    """
    own = network.state_dict()
    problems = [
        f"{name} has shape {tuple(weights[name].shape)}, the network's {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    if missing:
        problems.append(f"{len(missing)} tensors are missing, such as {missing[0]}")
    foreign = [name for name in weights if name not in own]
    if foreign:
        problems.append(f"{len(foreign)} tensors are unknown to the network, such as {foreign[0]}")
    if problems:
        more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
        raise ModelError(f"{source} does not fit {type(network).__name__}: {'; '.join(problems[:_SHOWN])}{more}")
    network.load_state_dict(weights, strict=False)


def non_finite_tensor(state: Mapping[str, torch.Tensor]) -> str | None:
    """Name of the first floating-point tensor of a state dict with an infinite value or NaN; None: there is none.

    Besides weights these can be the statistics of batch normalization, which do not affect the loss of training: its
    normalization uses those of the batch.
    """
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def check_archive(path: Path) -> None:
    """Raise ModelError if loading the .pt2 file `path` by ``torch.export.load`` could run code.

    Besides pickles (see :func:`no_pickles`), an archive can execute code in four ways: through compiled libraries and
    TorchScript objects in it; through symbolic sizes, which sympy evaluates; through operations, or arguments of
    operations, that name any function of torch; and through names, which become part of the source of the generated
    forward. Only what ``torch.export.save`` writes for an ordinary network is accepted, without operations on files. A
    damaged file raises RuntimeError, ValueError or zipfile.BadZipFile.
    """
    if (problem := _problem(path)) is not None:
        raise ModelError(f"{path}: refused, because loading it could run code: it {problem}")


def _problem(path: Path) -> str | None:
    """What the archive holds besides a graph and tensors: the first such part."""
    with zipfile.ZipFile(path) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
    reader = torch._C.PyTorchFileReader(str(path))
    for name in (*names, *reader.get_all_records()):
        if not _RECORD.fullmatch(name) and not name.startswith("extra/"):
            return f"holds {name[:80]!r}; allowed: graph, weights, constant tensors"
    records = [name for name in reader.get_all_records() if name.endswith(".json") and not name.startswith("extra/")]
    texts = (text for name in records for text in _texts(json.loads(reader.get_record(name)), key=""))
    for text, key in texts:
        allowed, what = _ALLOWED.get(key, (_NAME, "name"))
        if text and not allowed.fullmatch(text) and text not in _QUOTED:
            return f"has the {what} {text[:80]!r}, which torch.export does not write for an ordinary network"
    return None


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Each text in JSON with the key that it belongs to, and each key."""
    if isinstance(value, dict):
        for inner_key, inner in value.items():
            yield inner_key, "name"
            if inner_key not in _QUOTED:
                yield from _texts(inner, inner_key)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
    elif isinstance(value, str):
        yield value, key
