"""The output folder of a demo, and the figures, the video and the picture that are made from its recording."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.serialization import deserialize_message
from tqdm import tqdm

from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.demo.recorded_frames import (
    DnnFigures,
    Stream,
    found_names,
    recorded_frames,
)
from multi_dnn_ros.demo.session import DIAGNOSTICS, frame_counts, statuses_of
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.overlay_files import OverlayFiles, Picture, save_picture
from multi_dnn_ros.vision.result_kind import Layer

#: Empty file that marks a folder as that of a demo, and the files of one.
_MARK = ".multi_dnn_demo"
_FILES = ("overlay.mp4", "overlay.png", "summary.json", "node.log", "camera.log", "bag")


def check_output(output: Path) -> None:
    """Raise UsageError if clear_output() would delete what no demo has written."""
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file; expected a folder")
    if not (output / _MARK).is_file() and (found := [name for name in _FILES if (output / name).exists()]):
        raise UsageError(
            f"{output / found[0]} exists and is not of a demo; nothing is overwritten: choose another --output"
        )


def clear_output(output: Path) -> None:
    """Create the folder, or remove the files of an earlier demo, and mark it. Raises what check_output() raises."""
    check_output(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / _MARK).touch()  # first, so that the files of a killed demo are recognized
    for name in _FILES:
        path = output / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


class DrawnFrames(OverlayFiles):
    """The files overlay.mp4, and overlay.png with the frame in which most was found; a context manager.

    output: their folder.
    """

    def __init__(self, output: Path) -> None:
        super().__init__(output / "overlay.mp4")
        self._best: tuple[int, Picture] | None = None

    def add(self, picture: Picture, stamp_ns: int, found: int) -> None:
        """Add a frame. found: number of results that can be counted."""
        self.write(picture, stamp_ns)
        if self._best is None or found > self._best[0]:
            self._best = found, picture

    def close(self) -> None:
        super().close()
        if self._best is not None:
            save_picture(self.path.with_suffix(".png"), self._best[1])


def score_and_draw(output: Path, camera: str, image: str, streams: Sequence[Stream]) -> dict[str, Any]:
    """Score and draw the recording `bag` in the folder `output` frame by frame, into overlay.mp4 and overlay.png there.

    image: topic of the raw images, which are recorded as JPEG. Returns the number of messages by topic, the figures of
    each DNN, and in `silent` the DNNs without a result.
    """
    figures = {stream.dnn: DnnFigures(stream) for stream in streams}
    statuses: dict[str, Any] = {}
    with BagReader(output / "bag") as bag, DrawnFrames(output) as drawn:
        counts = {name: topic.count for name, topic in bag.topics.items()}
        for message in bag.messages([DIAGNOSTICS]):
            statuses |= statuses_of(deserialize_message(message.data, DiagnosticArray))
        frames = recorded_frames(bag, camera, f"{image}/compressed", streams)
        for frame in tqdm(frames, unit="frame", desc="scoring", leave=False, disable=None):
            layers = [Layer(dnn, figures[dnn].stream.kind, *result) for dnn, result in frame.results.items()]
            found = sum(len(found_names(result)) for result, _ in frame.results.values())
            drawn.add(draw(frame.image, layers), frame.stamp_ns, found)
            for figure in figures.values():
                figure.add(frame)
    dnns = {}
    for name, figure in figures.items():
        status = statuses.get(f"{name} on {camera}")
        dnns[name] = {**figure.summary(), "accounts": None if status is None else frame_counts(status)}
    silent = [name for name, figure in figures.items() if not figure.stamps_ns]
    return {"recorded_messages": counts, "dnns": dnns, "silent": silent}
