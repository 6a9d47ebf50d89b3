"""Overlays on a full disk or under a wrong name, pictures that do not hold what they state, and wrong parameters."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from small_disk import small_disk
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.vision.overlay_files import OverlayFileError, OverlayFiles, save_picture

HEAD = "/**:\n  ros__parameters:\n"
NOISE = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
JPEG, PNG = (cv2.imencode(end, NOISE)[1].tobytes() for end in (".jpg", ".png"))


def test_a_full_disk_leaves_no_broken_video_or_picture(tmp_path: Path) -> None:
    """OpenCV's writer itself reports no error."""

    def draw(count: int) -> None:
        with OverlayFiles(tmp_path / "drive.mp4") as video:
            for index in range(count):
                video.write(np.roll(NOISE, index * 7, axis=1), index * 10**8)

    large = np.tile(NOISE, (2, 2, 1))
    with small_disk(400_000):
        with pytest.raises(OverlayFileError, match=r"video .*drive\.mp4 cannot be written: it has \d+ of 40"):
            draw(40)
        with (
            pytest.raises(OverlayFileError, match=r"000000\.png cannot be written: File too"),
            OverlayFiles(tmp_path / "pictures") as pictures,
        ):
            pictures.write(large, 0)
        assert list(tmp_path.iterdir()) == []
        draw(3)
        save_picture(tmp_path / "found.png", np.zeros((48, 64, 3), np.uint8))
        with pytest.raises(OverlayFileError, match=r"picture .*found\.png cannot be written: File too"):
            save_picture(tmp_path / "found.png", large)
    assert cv2.imread(str(tmp_path / "found.png")).shape == (48, 64, 3)  # still the former picture
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drive.mp4", "found.png"]


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recording `in`."""
    monkeypatch.chdir(tmp_path)
    with BagWriter(tmp_path / "in") as writer:
        writer.add_topic("/front/image_raw", "sensor_msgs/msg/Image")
        for index in range(8):
            image = image_message(np.roll(NOISE, index * 7, axis=1), Header())
            writer.write("/front/image_raw", index, serialize_message(image))
    return tmp_path


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ("out/seen.mp4", "is in OUT_BAG"),
        ("seen.avi", "allowed: a name that ends in .mp4, or a folder"),
        ("there", "there_rear already exists"),
    ],
)
def test_a_wrong_overlay_is_reported_before_any_dnn_is_prepared(
    drive: Path, overlay: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (drive / "there_rear").mkdir()
    (drive / "two.yaml").write_text(HEAD + "    cameras: [front, rear]\n    dnns: [object]\n    device: cpu\n")
    assert main(["replay", "in", "out", "--params-file", "two.yaml", "--overlay", overlay]) in (1, 2)
    (error,) = capsys.readouterr().err.splitlines()
    assert words in error
    assert not (drive / "out").exists()


def jpeg_claiming(width: int, height: int) -> bytes:
    """A JPEG whose header says this size."""
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


PICTURES = {
    "half.jpg": (JPEG[: len(JPEG) // 2], "truncated"),
    "spoilt.png": (PNG[:1000] + b"x" + PNG[1001:], "checksum"),
    "bomb.jpg": (jpeg_claiming(60_000, 60_000), "60000 x 60000 pixels; allowed: at most"),
    "bomb.bmp": (b"BM" + struct.pack("<IIIIiiHH", 99, 0, 54, 40, 60_000, 60_000, 1, 24) + bytes(24), "decoded"),
    "empty.jpg": (b"", "cannot be decoded"),
    "text.png": (b"not an image", "cannot be decoded"),
}
_READER = """
import resource, sys
from pathlib import Path
from multi_dnn_ros.cli import main as cli
cli.main(["camera", "nowhere"])
from multi_dnn_ros.camera.sources import ImageSource, SourceError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))
for path in sys.argv[1:]:
    try:
        list(ImageSource(Path(path)).items())
    except SourceError as error:
        print(error)
"""


def test_a_damaged_image_is_named_and_its_stated_size_is_not_allocated(tmp_path: Path) -> None:
    """The image source of `multi-dnn camera`, in a process that cannot allocate 10 GB for one image."""
    for name, (content, _) in PICTURES.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-c", _READER, *(str(tmp_path / name) for name in PICTURES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for error, (name, (_, words)) in zip(done.stdout.splitlines(), PICTURES.items(), strict=True):
        assert error.startswith(f"image {tmp_path / name}")
        assert words in error
