"""``multi-dnn devices``: the processors of this machine, what they can do, and what cannot run on them and why."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import natural
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import check_writable
from multi_dnn_ros.common.torch_threads import torch_threads

if TYPE_CHECKING:
    from multi_dnn_ros.profiling.copies import Link
    from multi_dnn_ros.profiling.devices import Device

_DETAILS = """\
For the CPU and each GPU, the command prints name, memory, cores or SMs, measured arithmetic throughput per precision,
measured bandwidths of memory, of copies between host and GPU and of copies between GPUs, and the backends and
precisions that work on it, with the reason for those that do not.

Throughput is that of a large matrix product or 3x3 convolution, whichever is faster (int8: a matrix product). No DNN
can exceed it. Measuring takes some seconds per device; stop other programs meanwhile.
"""
_EXAMPLES = """\
multi-dnn devices
multi-dnn devices --json devices.json
multi-dnn devices --threads 1
multi-dnn devices --list
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "devices", "show the processors of this machine, and the backends and precisions that work on them",
        details=_DETAILS,
        examples=_EXAMPLES, run=run,
    )  # fmt: skip
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write everything to this JSON file")
    add("--list", action="store_true", help="list the devices without measuring them")
    add("--threads", type=natural, default=0, metavar="N", help="CPU threads; 0: one per core (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Find and measure the devices, print tables and write JSON."""
    if args.json is not None:
        check_writable("--json", args.json)
    import torch

    from multi_dnn_ros.cli.progress import progress_bar
    from multi_dnn_ros.common.reporting import cpu_count, provenance, write_json
    from multi_dnn_ros.profiling.devices import describe, find_devices, measure_devices
    from multi_dnn_ros.profiling.limits import busy_warning

    devices = find_devices()
    links: list[Link] = []
    warnings: list[str] = []
    threads = args.threads or cpu_count()
    if not args.list:
        warnings = [text for device in devices if (text := busy_warning(torch.device(device.id)))]
        with torch_threads(threads), progress_bar("devices", "step") as progress:
            devices, links = measure_devices(devices, progress)
    print(_tables(devices, links))
    for text in warnings:
        print(f"warning: {text}")
    if args.json is not None:
        content = {
            **provenance(),
            "cpu_threads": threads,
            "warnings": warnings,
            "devices": [describe(device) for device in devices],
            "links": [vars(link) for link in links],
        }
        write_json(args.json, content)
        print(f"written to {args.json}")
    return 0


def _tables(devices: Sequence[Device], links: Sequence[Link]) -> str:
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.profiling.devices import MEASURED

    named = table(
        ["device", "name", "memory, GiB", "cores or SMs", "has"],
        [
            [
                device.id,
                device.name,
                f"{device.memory_bytes / 2**30:.1f}",
                str(device.cores_or_sms),
                ", ".join(device.features),
            ]
            for device in devices
        ],
    )
    speeds = table(
        ["device", *(f"{name}, T{'OP' if name == 'int8' else 'FLOP'}/s" for name in MEASURED), "memory, GB/s",
         "from host, GB/s", "to host, GB/s"],
        [
            [device.id, *(_number(device.ops_per_s.get(name), 1e12) for name in MEASURED),
             _number(device.bytes_per_s, 1e9), _number(device.from_host_bytes_per_s, 1e9),
             _number(device.to_host_bytes_per_s, 1e9)]
            for device in devices
        ],
    )  # fmt: skip
    rows, reasons = [], []
    for device in devices:
        for backend in device.backends:
            rows.append([device.id, backend.name, backend.version, ", ".join(backend.precisions) or "-"])
            if backend.problem:
                reasons.append(f"{device.id}, {backend.name}: {backend.problem}")
            by_reason: dict[str, list[str]] = {}
            for precision, reason in backend.refused.items():
                by_reason.setdefault(reason, []).append(precision)
            reasons += [
                f"{device.id}, {backend.name}, {', '.join(names)}: {reason}" for reason, names in by_reason.items()
            ]
        reasons += [f"{device.id}, {name}, not measured: {text}" for name, text in device.not_measured.items()]
    parts = [named, speeds, table(["device", "backend", "version", "precisions"], rows)]
    if links:
        parts.append(
            table(
                ["from", "to", "reads the other's memory", "GB/s"],
                [
                    [link.source, link.target, "yes" if link.peer_access else "no", _number(link.bytes_per_s, 1e9)]
                    for link in links
                ],
            )
        )  # fmt: skip
    return "\n\n".join([*parts, "Does not work:\n" + "\n".join(f"  {reason}" for reason in reasons)])


def _number(value: float | None, unit: float) -> str:
    from multi_dnn_ros.common.reporting import three_digits

    return "-" if value is None else three_digits(value / unit)
