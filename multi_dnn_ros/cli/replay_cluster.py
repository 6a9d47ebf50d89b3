"""``multi-dnn replay --cluster``: every recording under a folder, each as a task of a Ray cluster."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import CommandError, UsageError


def run_cluster(args: argparse.Namespace) -> int:
    """Replay every recording that has no results yet. Returns 1 if one failed or is damaged."""
    from tqdm import tqdm

    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.fleet.ray_cluster import LOCAL, alive_hosts, connected, ray_reason

    output, options = args.out_bag.absolute(), _options(args)
    manifest = output / "manifest.json"
    recordings = dict(_recordings(args.in_bag.absolute(), args.in_bag.absolute(), output))
    if not recordings:
        raise UsageError(f"IN_BAG {args.in_bag} holds no recording; with --cluster it is a folder of recordings")
    if manifest.is_file():
        if (before := json.loads(manifest.read_text(encoding="utf-8"))["options"]) != options:
            raise UsageError(f"{manifest} belongs to replays with options {before}, not {options}; name a new folder")
    elif output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"OUT_BAG {output} already exists and has no {manifest.name}; name a new folder")
    content: dict[str, Any] = {"options": options, **provenance(), "recordings": {}}
    gpus = args.gpus
    with connected(args.cluster or LOCAL) as ray, tqdm(total=len(recordings), unit="recording", disable=None) as bar:
        if not any(host.get("CPU", 0) >= 1 and host.get("GPU", 0) >= gpus for host in alive_hosts(ray)):
            raise CommandError(f"no host of the cluster has the CPU core and the {gpus:g} GPUs for one replay")
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_calls=1, max_retries=2)(replay_one)
        pending = {task.remote(str(path), str(output / name), options): name for name, path in recordings.items()}
        while pending:
            (ended,), _ = ray.wait(list(pending), num_returns=1)
            name = pending.pop(ended)
            try:
                entry = ray.get(ended)
            except ray.exceptions.RayError as error:
                entry = {"status": "failed", "message": ray_reason(error)}
            content["recordings"][name] = entry
            write_json(manifest, content)
            bar.update(1)
            if entry["status"] != "done":
                bar.write(f"{name}: {entry['status']}: {entry['message']}", file=sys.stderr)
    found = [entry["status"] for entry in content["recordings"].values()]
    counts = ", ".join(f"{found.count(status)} {status}" for status in ("done", "damaged", "failed"))
    print(f"{len(found)} recordings: {counts}\nwritten to {output}; {manifest.name} lists the recordings")
    return 0 if found.count("done") == len(found) else 1


def replay_one(recording: str, output: str, options: list[str]) -> dict[str, Any]:
    """One replay, in a process of the cluster. What it prints is appended to a log beside the results.

    Results get their name only when they are complete, so those that exist are not computed again.
    """
    from multi_dnn_ros.cli.main import main

    target = Path(output)
    log = target.with_name(f"{target.name}.log")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        with (
            log.open("a", buffering=1, encoding="utf-8") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
            contextlib.suppress(SystemExit),
        ):
            main(["replay", recording, output, *options])
    if not (target / "summary.json").is_file():
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {"status": "failed", "message": f"{lines[-1].strip() if lines else 'no output'} ({log.name})"}
    damage = json.loads((target / "summary.json").read_text(encoding="utf-8"))["input_damage"]
    return {"status": "damaged" if damage else "done", "message": "; ".join(damage)}


def _recordings(folder: Path, root: Path, output: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of the rosbag2 folders, and of the .mcap and .db3 files outside them. The results are left out."""
    for path in sorted(folder.iterdir()) if folder.is_dir() and folder != output else ():
        if (path / "metadata.yaml").is_file():
            yield str(path.relative_to(root)), path
        elif path.is_dir() and not path.is_symlink():
            yield from _recordings(path, root, output)
        elif path.suffix in (".mcap", ".db3") and not path.name.startswith("."):  # a Mac's ._name
            yield str(path.relative_to(root).with_suffix("")), path


def _options(args: argparse.Namespace) -> list[str]:
    """The options of each replay. Other processes have other working folders."""
    options = ["--storage", args.storage, *["--with-input"] * args.with_input]
    options += ["--params-file", str(args.params_file.absolute())] if args.params_file is not None else []
    options += [word for camera, topic in args.topic for word in ("--topic", f"{camera}:={topic}")]
    return [*options, "--node", args.node, *(["--device", args.device] if args.device is not None else [])]
