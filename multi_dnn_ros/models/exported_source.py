"""Model source of exported programs: .pt2 files of torch.export."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.export.passes import move_to_device_pass

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.artifact import read_description
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.exported_archive import UnsafeArchive, check_archive, stored_device_types
from multi_dnn_ros.models.file_source import source_of_file
from multi_dnn_ros.models.registry import ModelRequest
from multi_dnn_ros.models.weights import check_stored, no_pickles

#: Their arguments are (input, probability, whether in training).
_DROPOUTS = (torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default, torch.ops.aten.feature_dropout.default)


def exported_source(request: ModelRequest) -> Source:
    """The network of an exported program, on the CPU, whatever device it was exported on.

    Raises ModelError for a file that is damaged, unsafe, exported in training mode, or exported on a GPU if this
    machine has none.
    """
    path = Path(request.name)
    try:
        check_stored(path)
        check_archive(path)
        devices = stored_device_types(path)
        if "cuda" in devices and not torch.cuda.is_available():
            raise ModelError(
                f"{path}: was exported on cuda, and there is no GPU here; call .cpu() on the network before "
                "torch.export.export"
            )
        with no_pickles():
            program = torch.export.load(path)
        if not devices <= {"cpu"}:  # backends expect a network on the CPU
            program = move_to_device_pass(program, "cpu")
        description = read_description(path)
        module: nn.Module = program.module(check_guards=False)
    except ModelError:
        raise
    except UnsafeArchive as error:
        raise ModelError(f"{path}: refused, because loading it could run code: it {error}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as an exported program: {summarize_error(error)}") from None
    _check_mode(path, program.graph)
    shapes = [
        tuple(axis if isinstance(axis, int) else 0 for axis in node.meta["val"].shape)  # 0: a free axis
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in program.graph_signature.user_inputs
    ]
    for part in module.modules():  # exported modules reject eval(); their mode was fixed at export
        part.training = False
    return source_of_file(path, module, shapes, None, description)


def _check_mode(path: Path, graph: torch.fx.Graph) -> None:
    """Raise ModelError for active dropout and for batch norms that use the statistics of the batch."""
    active = {
        str(node.target).split(".")[1]
        for node in graph.nodes
        if (node.target in _DROPOUTS and len(node.args) > 2 and node.args[1] and node.args[2])
        or (node.target is torch.ops.aten.batch_norm.default and node.args[3] is not None and node.args[5])
    }
    if active:
        raise ModelError(
            f"{path}: was exported in training mode ({', '.join(sorted(active))} active); call eval() on the network "
            "before torch.export.export"
        )
