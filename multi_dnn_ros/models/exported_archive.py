"""Checks that a .pt2 archive holds data only, before ``torch.export.load``, which can execute text from the archive.

Besides pickles (disabled by PyTorch's weights-only switch), an archive can execute code in four ways: through compiled
libraries and TorchScript objects in it; through symbolic sizes, which sympy evaluates; through operations, or arguments
of operations, that name any function of torch; and through names, which become part of the source of the generated
forward. Only what ``torch.export.save`` writes for an ordinary network is accepted, without operations on files.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.models.errors import ModelError

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


def check_archive(path: Path) -> None:
    """Raise ModelError if loading the .pt2 file `path` could run code.

    A damaged file raises RuntimeError, ValueError or zipfile.BadZipFile.
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
