"""Show the processors of this machine, and the backends and precisions that work on them.

For the CPU and each GPU, the command prints name, memory, cores or SMs, measured arithmetic throughput per precision,
measured bandwidths of memory, of copies between host and GPU and of copies between GPUs, and the backends and
precisions that work on it, with the reason for those that do not.

Throughput is that of a large matrix product or 3x3 convolution, whichever is faster (int8: a matrix product). No DNN
can exceed it. Measuring takes some seconds per device; stop other programs meanwhile.

examples:
  multi-dnn devices --json devices.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.figures import progress_bar, rows_table, write_figures
from multi_dnn_ros.cli.options import Commands, add_command, add_options

if TYPE_CHECKING:
    from multi_dnn_ros.profiling.copies import Link
    from multi_dnn_ros.profiling.devices import Device


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(commands, "devices", __doc__, run)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this JSON file")
    parser.add_argument("--list", action="store_true", help="list the devices without measuring them")
    add_options(parser, "--threads")


def run(args: argparse.Namespace) -> int:
    """Find and measure the devices, print tables and write JSON."""
    import torch

    from multi_dnn_ros.common.resources import cpu_count
    from multi_dnn_ros.profiling.devices import describe, find_devices, measure_devices
    from multi_dnn_ros.profiling.limits import busy_warning
    from multi_dnn_ros.profiling.torch_threads import torch_threads

    devices = find_devices()
    links: list[Link] = []
    warnings: list[str] = []
    threads = args.threads or cpu_count()
    if not args.list:
        warnings = [text for device in devices if (text := busy_warning(torch.device(device.id)))]
        with torch_threads(threads), progress_bar("devices", "step") as progress:
            devices, links = measure_devices(devices, progress)
    _print(devices)
    if links:
        print(rows_table([{"from": link.source, "to": link.target, "reads the other's memory": link.peer_access,
                           "GB/s": link.bytes_per_s and link.bytes_per_s / 1e9} for link in links]))  # fmt: skip
    for text in warnings:
        print(f"warning: {text}")
    content: dict[str, Any] = {"cpu_threads": threads, "warnings": warnings}
    content |= {"devices": [describe(device) for device in devices], "links": [vars(link) for link in links]}
    write_figures(args.json, content)
    return 0


def _print(devices: Sequence[Device]) -> None:
    """What the devices are, what was measured, their backends, and what does not work."""
    rows, reasons = [], []
    for device in devices:
        row = {"device": device.id, "name": device.name, "memory, GiB": device.memory_bytes / 2**30,
               "cores or SMs": device.cores_or_sms, "has": ", ".join(device.features)}  # fmt: skip
        speeds = {name: f"{ops / 1e12:.3g}" for name, ops in device.ops_per_s.items()}
        copies = {name: getattr(device, f"{name}bytes_per_s") for name in ("", "from_host_", "to_host_")}
        found = {name.replace("_", " ") or "memory": f"{rate / 1e9:.3g}" for name, rate in copies.items() if rate}
        rows.append({**row, "TFLOP/s (int8: TOP/s)": speeds, "GB/s": found})
        reasons += [f"{device.id}, {name}, not measured: {text}" for name, text in device.not_measured.items()]
    print(f"{rows_table(rows)}\n")
    backends = []
    for device in devices:
        for each in device.backends:
            backends.append({"device": device.id, "backend": each.name, "version": each.version,
                             "precisions": ", ".join(each.precisions)})  # fmt: skip
            refused = {"": each.problem} if each.problem else each.refused
            reasons += [f"{device.id}, {each.name}{name and ', '}{name}: {text}" for name, text in refused.items()]
    print(rows_table(backends), "\nDoes not work:", *(f"  {reason}" for reason in reasons), sep="\n")
