"""What the actions of ``multi-dnn profile`` share: where and how they measure."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import natural, positive
from multi_dnn_ros.cli.network_arguments import check_backend

if TYPE_CHECKING:
    from multi_dnn_ros.planning.measure import Progress
    from multi_dnn_ros.planning.timing import Target


def add_target(parser: argparse.ArgumentParser, *, repeats: int = 25, threads: int = 0) -> None:
    """Declare device, backend, precision and rounds."""
    add = parser.add_argument_group("where and how").add_argument
    add("--device", default="auto", help="auto, cpu, cuda, cuda:<number> (default: %(default)s)")
    add("--backend", default="auto", help="as the node's parameter dnn.<dnn>.backend (default: %(default)s)")
    add("--precision", choices=("auto", "fp16", "bf16"), default="auto", help="default: %(default)s")
    add("--batch", type=positive, default=1, help="images at once (default: %(default)s)")
    add("--threads", type=natural, default=threads, metavar="N",
        help="threads inside one CPU operation; 0: a core each (default: %(default)s)")  # fmt: skip
    add("--repeats", type=positive, default=repeats, metavar="N", help="rounds; medians count (default: %(default)s)")
    add("--seed", type=natural, default=0, help="of the input and the order of rounds (default: %(default)s)")
    add("--limits", type=Path, metavar="JSON", help="cache of devices (default: ~/.cache/multi_dnn_ros/devices.json)")


@contextmanager
def open_target(args: argparse.Namespace) -> Iterator[Target]:
    """The device and backend of the arguments, with PyTorch's threads set for as long as it is used."""
    import torch

    from multi_dnn_ros.common.reporting import cpu_count
    from multi_dnn_ros.pipeline.choices import backend_name, choose_backend, choose_device
    from multi_dnn_ros.planning.timing import Target

    check_backend(args)
    device = choose_device(args.device)
    name = backend_name(args.backend, device, precision=args.precision)
    before = torch.get_num_threads()
    torch.set_num_threads(args.threads or (cpu_count() if device.type == "cpu" else before))
    try:
        yield Target(device, name, lambda: choose_backend(name, device), args.precision, args.batch, args.repeats)
    finally:
        torch.set_num_threads(before)


@contextmanager
def progress_bar(what: str, unit: str = "round") -> Iterator[Progress]:
    """A bar on the terminal while inside; gives what moves it."""
    from tqdm import tqdm

    with tqdm(unit=unit, desc=what, disable=None, leave=False) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.n = done
            bar.refresh()

        yield update
