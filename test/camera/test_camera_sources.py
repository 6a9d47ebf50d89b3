"""Image sources: their images, and errors that name the source."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from multi_dnn_ros.camera.sources import SceneSource, SourceError, open_source


def flat(value: int, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    return np.full((size[1], size[0], 3), value, np.uint8)


def video(path: Path, count: int = 6, rate_hz: float = 12.5) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), rate_hz, (64, 48))
    assert writer.isOpened()
    for index in range(count):
        writer.write(np.dstack([flat(0)[..., 0], flat(0)[..., 0], flat(40 * (index % 6))[..., 0]]))  # red in BGR
    writer.release()
    return path


def test_a_truncated_video_is_noted(tmp_path: Path) -> None:
    path = video(tmp_path / "drive.avi", count=60)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    source = open_source(str(path))
    count = len(list(source.items()))
    assert 0 < count < 58
    assert source.notes == [f"video {path} is cut short: {count} of 60 frames could be decoded"]


@pytest.mark.parametrize("content", [b"", b"this is no video", bytes(100_000)])
def test_a_broken_video_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "drive.mp4").write_bytes(content)
    with pytest.raises(SourceError, match=r"video .*drive\.mp4 (is empty|cannot be opened|is broken)"):
        open_source(str(tmp_path / "drive.mp4"))


def test_images_are_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 100, 1):
        cv2.imwrite(str(tmp_path / f"frame{number}.png"), flat(number))
    (tmp_path / "notes.txt").write_text("no image")
    source = open_source(str(tmp_path))
    assert [int(shot.image[0, 0, 0]) for shot in source.items()] == [1, 9, 10, 100]
    assert len(list(open_source(str(tmp_path / "frame9.png")).items())) == 1


def test_a_broken_image_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"folder {tmp_path} holds no image"):
        open_source(str(tmp_path))
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(SourceError, match=r"image .*a\.png: data \(4 bytes.*begins with 89 50 4e 47"):
        list(open_source(str(tmp_path / "a.png")).items())


def test_scenes_are_determined_by_the_seed_and_unchanged_when_prepared() -> None:
    first, again, other = (SceneSource((96, 64), seed, 10.0, 3) for seed in (5, 5, 6))
    again.prepare(lambda: None)
    shots = list(first.items())
    for shot, same in zip(shots, again.items(), strict=True):
        np.testing.assert_array_equal(shot.image, same.image)
        assert shot.scene is not None
        assert shot.scene.lane_mask.shape == (64, 96)
    assert any((shot.image != unlike.image).any() for shot, unlike in zip(shots, other.items(), strict=True))


def test_a_missing_or_empty_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="source 'nowhere' does not exist"):
        open_source("nowhere")
    (tmp_path / "x.mcap").write_bytes(b"")
    with pytest.raises(SourceError, match=r"x\.mcap is a recording; play it with `ros2 bag play`"):
        open_source(str(tmp_path / "x.mcap"))
    with pytest.raises(SourceError, match="device /dev/null cannot be opened"):
        open_source("/dev/null")
