"""What the actions of ``multi-dnn profile`` share: device and backend."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import natural, positive
from multi_dnn_ros.cli.network_arguments import check_backend
from multi_dnn_ros.cli.options import add_device, add_seed
from multi_dnn_ros.common import extensions

if TYPE_CHECKING:
    from multi_dnn_ros.planning.timing import Target


def add_target(
    parser: argparse.ArgumentParser, *, repeats: int = 25, threads: int | None = 0, default: str = "%(default)s"
) -> None:
    """Declare device, backend, precision, threads, repeats, seed and cache. default: that of --threads in the help."""
    group = parser.add_argument_group("how to measure")
    add = group.add_argument
    add_device(group)
    backends = ", ".join(("auto", *extensions.names(extensions.BACKENDS)))
    add("--backend", default="auto", metavar="NAME",
        help=f"backend, as parameter dnn.<dnn>.backend of the node: {backends} (default: %(default)s)")  # fmt: skip
    add("--precision", choices=("auto", "fp16", "bf16"), default="auto", help="precision (default: %(default)s)")
    add("--batch", type=positive, default=1, metavar="N", help="images per inference (default: %(default)s)")
    add("--threads", type=natural, default=threads, metavar="N",
        help=f"threads inside one CPU operation; 0: one per core (default: {default})")  # fmt: skip
    add("--repeats", type=positive, default=repeats, metavar="N",
        help="repeats, of which medians are reported (default: %(default)s)")  # fmt: skip
    add_seed(group, "inputs and the order of measurements")
    add("--limits", type=Path, metavar="JSON",
        help="cache of measured device limits (default: ~/.cache/multi_dnn_ros/devices.json)")  # fmt: skip


@contextmanager
def open_target(args: argparse.Namespace, threads: int = 0) -> Iterator[Target]:
    """The device and backend of the options. PyTorch uses --threads threads inside the context.

    threads: number if --threads has no default and is not given; 0: one per core.
    """
    import torch

    from multi_dnn_ros.common.reporting import cpu_count
    from multi_dnn_ros.common.torch_threads import torch_threads
    from multi_dnn_ros.pipeline.choices import automatic_providers, backend_name, choose_backend, choose_device
    from multi_dnn_ros.planning.timing import Target

    check_backend(args)
    device = choose_device(args.device, "--device is")
    name = backend_name(args.backend, device, precision=args.precision, backend_from="--backend")
    wanted = threads if args.threads is None else args.threads
    threads = wanted or (cpu_count() if device.type == "cpu" else torch.get_num_threads())
    make_backend = partial(choose_backend, name, device, providers=automatic_providers(args.backend, device))
    with torch_threads(threads):
        yield Target(device, name, make_backend, args.precision, args.batch, args.repeats)
