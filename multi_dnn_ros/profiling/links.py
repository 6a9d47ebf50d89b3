"""How fast data is copied between a GPU and the host's memory or other GPUs, and over which link."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

import torch

from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.planning.clock import clock_for
from multi_dnn_ros.planning.device import fastest_s

_MEBIBYTES = 256
_SMI_TIMEOUT_S = 10.0
#: How ``nvidia-smi topo -m`` names links, longest first.
_LINKS = {
    "NV": "NVLink",
    "PIX": "PCIe, one switch",
    "PXB": "PCIe, several switches",
    "PHB": "PCIe, through the CPU",
    "NODE": "PCIe, through one NUMA node",
    "SYS": "PCIe, between NUMA nodes",
}
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Link:
    """Link from GPU `source` to GPU `target`. kind: "" if unknown. peer_access: whether `source` can access the memory
    of `target` directly.

    bytes_per_s: rate of a copy; None: not enough memory to measure it.
    """

    source: str
    target: str
    kind: str
    peer_access: bool
    bytes_per_s: float | None


def measure_host_copies(device: torch.device) -> tuple[float, float] | None:
    """Bytes per second of a large copy from page-locked host memory to a GPU, and back. None: out of memory."""
    try:
        host = torch.empty(_MEBIBYTES << 20, dtype=torch.uint8, pin_memory=True)
        gpu = torch.empty_like(host, device=device)
        clock = clock_for(device)
        with torch.cuda.device(device):
            to_gpu_s = fastest_s(lambda: gpu.copy_(host, non_blocking=True), clock)
            to_host_s = fastest_s(lambda: host.copy_(gpu, non_blocking=True), clock)
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise
    return host.nbytes / to_gpu_s, host.nbytes / to_host_s


def measure_link(source: int, target: int, kind: str = "") -> Link:
    """Measure the link from GPU `source` to GPU `target`, which are PyTorch's indices."""
    devices = torch.device("cuda", source), torch.device("cuda", target)
    rate = None
    try:
        ours, theirs = (torch.empty(_MEBIBYTES << 20, dtype=torch.uint8, device=device) for device in devices)
        with torch.cuda.device(devices[0]):  # a copy between GPUs runs on the source's stream
            rate = ours.nbytes / fastest_s(lambda: theirs.copy_(ours, non_blocking=True), clock_for(devices[0]))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return Link(str(devices[0]), str(devices[1]), kind, torch.cuda.can_device_access_peer(source, target), rate)


def link_kinds() -> dict[tuple[int, int], str]:
    """How two GPUs are connected, by their nvidia-smi indices. Empty if nvidia-smi is missing or fails."""
    return parse_topology(_nvidia_smi("topo", "-m"))


def gpu_indices() -> dict[str, int]:
    """nvidia-smi's index of each GPU by its UUID, such as `GPU-8d1b...`. Empty if nvidia-smi is missing or fails."""
    return parse_indices(_nvidia_smi("--query-gpu=index,uuid", "--format=csv,noheader"))


def parse_indices(text: str) -> dict[str, int]:
    """The indices in lines of nvidia-smi such as `0, GPU-8d1b...`."""
    return {uuid: int(index) for index, uuid in re.findall(r"^(\d+), *(\S+)$", text, re.M)}


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """The links between GPUs in the matrix that ``nvidia-smi topo -m`` prints.

    NV18 becomes "NVLink (18 links)".
    """
    lines = [_TERMINAL_CODES.sub("", line).split() for line in text.splitlines()]
    header = next((words for words in lines if words and all(re.fullmatch(r"GPU\d+", word) for word in words[:1])), [])
    columns = [int(word[3:]) for word in header if re.fullmatch(r"GPU\d+", word)]
    found = {}
    for words in lines[lines.index(header) + 1 :] if header else []:
        if not words or not re.fullmatch(r"GPU\d+", words[0]):
            continue
        for column, cell in zip(columns, words[1:], strict=False):
            name = re.fullmatch(r"([A-Z]+)(\d*)", cell)
            if name is not None and name[1] in _LINKS:
                count = f" ({name[2]} links)" if name[2] else ""
                found[int(words[0][3:]), column] = _LINKS[name[1]] + count
    return found


def _nvidia_smi(*arguments: str) -> str:
    """Its output; empty if it is missing or fails."""
    command = ["nvidia-smi", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
