"""Show the processors of this machine, and the backends and precisions that work on them.

For the CPU and each GPU, the command prints name, memory, cores or SMs, and the backends and precisions that work on
it, with the reason for those that do not. `multi-dnn profile layers` measures how fast a device computes.

examples:
  multi-dnn devices --json devices.json
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from multi_dnn_ros.cli.figures import rows_table, write_figures
from multi_dnn_ros.cli.options import Commands, add_command


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(commands, "devices", __doc__, run)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this JSON file")


def run(args: argparse.Namespace) -> int:
    """Find the devices, print tables and write JSON."""
    from multi_dnn_ros.profiling.devices import find_devices

    devices = find_devices()
    rows, reasons = [], []
    for device in devices:
        for each in device.backends:
            rows.append({"device": device.id, "backend": each.name, "version": each.version,
                         "precisions": ", ".join(each.precisions)})  # fmt: skip
            refused = {"": each.problem} if each.problem else each.refused
            reasons += [f"{device.id}, {each.name}{name and ', '}{name}: {text}" for name, text in refused.items()]
    print(rows_table([
        {"device": device.id, "name": device.name, "memory, GiB": device.memory_bytes / 2**30,
         "cores or SMs": device.cores_or_sms, "has": ", ".join(device.features)}
        for device in devices
    ]))  # fmt: skip
    print("", rows_table(rows), "\nDoes not work:", *(f"  {reason}" for reason in reasons), sep="\n")
    write_figures(args.json, {"devices": [asdict(device) for device in devices]})
    return 0
