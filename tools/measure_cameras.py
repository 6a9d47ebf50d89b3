"""Measures how many images of a camera reach the node: the table of docs/cameras.md.

    source /opt/ros/jazzy/setup.bash && source install/setup.bash
    python3 tools/measure_cameras.py --seconds 600 --rmem-max 212992 10485760

Each case starts the node by `ros2 launch` with the default settings, and a camera (plain_camera.py) with the default
settings of its middleware or with our file under config/. --rmem-max (needs root) sets net.core.rmem_max and restores
it afterwards; without it the present value is used. Results are added to results/cameras_ros2.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from multi_dnn_ros.common.reporting import provenance

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIMIT = Path("/proc/sys/net/core/rmem_max")
#: Variables that configure a middleware; unset for the camera and the node.
CONFIGURED = ("CYCLONEDDS_URI", "FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE",
              "FASTDDS_BUILTIN_TRANSPORTS")  # fmt: skip
READY_S = 120.0
#: Variable and file under config/ for the camera's process, by its middleware.
CONFIGURATIONS = {
    "rmw_cyclonedds_cpp": ("CYCLONEDDS_URI", "cyclonedds.xml"),
    "rmw_fastrtps_cpp": ("FASTRTPS_DEFAULT_PROFILES_FILE", "fastdds_shared_memory.xml"),
}


@dataclass(frozen=True)
class Case:
    """One row of the results. camera_side: `plain`, or `configured` with our file for its middleware."""

    middleware: str
    reliability: str
    image: str
    rate: float
    camera_side: str = "plain"

    @property
    def jpeg(self) -> bool:
        return self.image.endswith("jpeg")


def cases() -> list[Case]:
    images = [("1280x720", 10.0), ("1280x720", 30.0), ("1920x1080", 10.0), ("1920x1080", 30.0), ("1280x720 jpeg", 30.0)]
    found = [
        Case(middleware, reliability, image, rate)
        for middleware in ("rmw_cyclonedds_cpp", "rmw_fastrtps_cpp")
        for reliability in ("reliable", "best_effort")
        for image, rate in images
    ]
    found += [
        Case(middleware, reliability, image, 30.0, "configured")
        for middleware in CONFIGURATIONS
        for reliability in ("reliable", "best_effort")
        for image in ("1280x720", "1920x1080")
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each case")
    parser.add_argument("--rmem-max", type=int, nargs="*", default=[], help="limits to set, one after the other (root)")
    parser.add_argument("--only", default="", help="run the cases whose description matches this regular expression")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "cameras_ros2.json")
    parser.add_argument("--table", action="store_true", help="print the results as the table of docs/cameras.md")
    parser.add_argument("--direct", action="store_true", help="start the node by `multi-dnn run`, without launch")
    parser.add_argument("--observe", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.observe:
        print(json.dumps(observe(Case(**json.loads(args.observe)), args.seconds, args.direct)))
        return
    if args.table:
        print(table(json.loads(args.output.read_text())["rows"]))
        return
    for limit in args.rmem_max or [int(LIMIT.read_text())]:
        for case in cases():
            if re.search(args.only, describe(case)):
                with kernel_limit(limit):
                    row = {"rmem_max": limit, **run(case, args.seconds, args.direct)}
                    if int(LIMIT.read_text()) != limit:
                        print(f"{describe(case)}: another process changed {LIMIT}; not counted", flush=True)
                        continue
                print(shown(row), flush=True)
                save(args.output, row)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row for each middleware, camera and kernel limit, a column for each kind of image."""
    names = {"rmw_cyclonedds_cpp": "Cyclone DDS", "rmw_fastrtps_cpp": "Fast DDS"}
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    columns = list(dict.fromkeys(f"{case.image} {case.rate:g} Hz" for case in cases()))
    for row in rows:
        case = Case(**row["case"])
        key = (
            f"{row['rmem_max']:,}",
            names[case.middleware],
            case.reliability.replace("_", " "),
            "not configured" if case.camera_side == "plain" else f"`{CONFIGURATIONS[case.middleware][1]}`",
        )
        share = row["received"] / row["sent"]
        age = "" if share == 0 else f", {row['age_p50_ms']:.0f} / {row['age_p99_ms']:.0f} ms"
        cell = f"{row['received']} of {row['sent']}{age}"
        lines.setdefault(key, {})[f"{case.image} {case.rate:g} Hz"] = cell
    text = ["| `rmem_max` | middleware | camera | camera's side | " + " | ".join(columns) + " |"]
    text.append("|" + "---|" * (4 + len(columns)))
    for key, cells in lines.items():
        text.append("| " + " | ".join((*key, *(cells.get(column, "") for column in columns))) + " |")
    return "\n".join(text)


def describe(case: Case) -> str:
    return f"{case.middleware} {case.reliability} {case.image} {case.rate:g} Hz {case.camera_side}"


def shown(row: dict[str, Any]) -> str:
    return (
        f"rmem_max {row['rmem_max']:>8} {describe(Case(**row['case'])):58} "
        f"{row['received']:>6} of {row['sent']:<6} age p50 {row['age_p50_ms']:.0f} p99 {row['age_p99_ms']:.0f} ms, "
        f"said lost {row['stated_lost']}, load {row['load'][0]:.1f}, warned {row['warned_after_s']}"
    )


@contextmanager
def kernel_limit(limit: int) -> Iterator[None]:
    before = LIMIT.read_text()
    if int(before) == limit:
        yield
        return
    LIMIT.write_text(str(limit))
    # Restore the limit even if a signal ends this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        LIMIT.write_text(before)


def run(case: Case, seconds: float, direct: bool = False) -> dict[str, Any]:
    """One case, in a process with the middleware of the case."""
    environment = {name: value for name, value in os.environ.items() if name not in CONFIGURED}
    environment["RMW_IMPLEMENTATION"] = case.middleware
    command = [sys.executable, __file__, "--seconds", str(seconds), "--observe", json.dumps(asdict(case))]
    command += ["--direct"] * direct
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"case": asdict(case), "seconds": seconds, **row}


def observe(case: Case, seconds: float, direct: bool) -> dict[str, Any]:
    """Start node and camera, and read the status of the camera until the camera has ended."""
    import rclpy
    from diagnostic_msgs.msg import DiagnosticArray

    reports: list[dict[str, str]] = []

    def keep(message: Any) -> None:
        reports.extend(
            {"message": status.message, **{item.key: item.value for item in status.values}}
            for status in message.status
            if status.name.endswith(": camera front")
        )

    rclpy.init()
    node = rclpy.create_node("measure_cameras")
    node.create_subscription(DiagnosticArray, "/diagnostics", keep, 100)

    def spin_until(condition: Any, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while not condition() and time.monotonic() < end:
            rclpy.spin_once(node, timeout_sec=0.1)

    with TemporaryDirectory() as folder:
        log = Path(folder) / "node.log"
        launch = ["ros2", "launch", "multi_dnn_ros", "multi_dnn.launch.py"]
        if direct:
            launch = [sys.executable, "-m", "multi_dnn_ros.cli.main", "run"]
        camera_log = Path(folder) / "camera.log"
        if case.jpeg:
            settings = Path(folder) / "jpeg.yaml"
            settings.write_text("/**:\n  ros__parameters:\n    camera.front.transport: compressed\n")
            launch += ["--params-file", str(settings)] if direct else [f"params_file:={settings}"]
        load = os.getloadavg()[:2]
        running = [start(launch, log)]
        try:
            spin_until(lambda: reports, READY_S)
            assert reports, log.read_text()[-3000:]
            running.append(start(camera_command(case, seconds, Path(folder)), camera_log, camera_environment(case)))
            camera = running[-1]
            spin_until(lambda: camera.poll() is not None, seconds * 3 + 60.0)
            spin_until(lambda: False, 2.5)
        finally:
            for process in reversed(running):
                stop(process)
        text = log.read_text()
        camera_text = camera_log.read_text()
        sent = re.search(r"sent (\d+) in ([\d.]+) s", camera_text)
        assert sent is not None, camera_text
    node.destroy_node()
    rclpy.shutdown()
    return {
        "sent": int(sent[1]),
        "camera_seconds": float(sent[2]),
        "load": load,
        **summary(reports),
        "warned_after_s": warned_after(text, camera_text),
        "middleware": next(iter(re.findall(r"middleware: [^\n\x1b]*", text)), ""),
    }


def summary(reports: list[dict[str, str]]) -> dict[str, Any]:
    last = reports[-1]
    ages = {
        name: [float(report[f"header stamp to arrival {name} (ms)"]) for report in reports if int(report["received"])]
        for name in ("p50", "p99")
    }
    known = {name: [value for value in values if value == value] for name, values in ages.items()}
    return {
        "received": int(last["received"]),
        "stated_lost": last["lost (reported by the middleware)"],
        "stated_missing_percent": max(float(report["missing of the last 10 s (%)"]) for report in reports),
        "datagrams_dropped": int(last["datagrams dropped by the kernel"]),
        "qos": last["QoS"],
        # Medians over the windows of 10 s that the diagnostics report.
        "age_p50_ms": statistics.median(known["p50"]) if known["p50"] else float("nan"),
        "age_p99_ms": statistics.median(known["p99"]) if known["p99"] else float("nan"),
        "messages": sorted({report["message"] for report in reports if "missing" in report["message"]})[:3],
    }


def warned_after(node_log: str, camera_log: str) -> float | None:
    """Seconds from the camera's first image to the warning about receive buffers; None: no warning."""
    first = re.search(r"first image at ([\d.]+)", camera_log)
    warned = re.search(
        r"\[WARN\] \[([\d.]+)\] \[multi_dnn\]: camera front, topic .*: (?:no image|images are lost)", node_log
    )
    return round(float(warned[1]) - float(first[1]), 1) if first and warned else None


def camera_command(case: Case, seconds: float, folder: Path) -> list[str]:
    command = [sys.executable, str(HERE / "plain_camera.py"), "--size", case.image.split()[0]]
    command += ["--rate", str(case.rate), "--count", str(round(case.rate * seconds)), "--qos", case.reliability]
    if case.jpeg:
        file = folder / "image.jpg"
        write_jpeg(file, case.image.split()[0])
        command += ["--jpeg", str(file), "--topic", "/front/image_raw/compressed"]
    return command


def write_jpeg(path: Path, size: str) -> None:
    """An image with as much detail as one of a road: 0.2 bytes per pixel as JPEG."""
    import cv2
    import numpy as np

    width, height = (int(number) for number in size.split("x"))
    noise = np.random.default_rng(0).integers(0, 256, (height // 9, width // 9, 3), np.uint8)
    cv2.imwrite(
        str(path), cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC), [cv2.IMWRITE_JPEG_QUALITY, 85]
    )


def camera_environment(case: Case) -> dict[str, str]:
    if case.camera_side == "plain":
        return {}
    variable, name = CONFIGURATIONS[case.middleware]
    return {
        variable: (ROOT / "config" / name).as_uri() if variable == "CYCLONEDDS_URI" else str(ROOT / "config" / name)
    }


def start(command: list[str], log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process by SIGINT; kill it and its descendants if it does not end in time."""
    for number, limit_s in ((signal.SIGINT, 20.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(limit_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def save(path: Path, row: dict[str, Any]) -> None:
    rows = json.loads(path.read_text())["rows"] if path.is_file() else []
    key = (row["rmem_max"], row["case"])
    rows = [old for old in rows if (old["rmem_max"], old["case"]) != key] + [row]
    order = {case: index for index, case in enumerate(cases())}
    rows.sort(key=lambda old: (old["rmem_max"], order[Case(**old["case"])]))
    command = shlex.join(["python3", "tools/measure_cameras.py", *sys.argv[1:]])
    about = {**provenance(), "command": command, "ROS_DISTRO": os.environ.get("ROS_DISTRO", "")}
    path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
