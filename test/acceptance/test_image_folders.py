"""Folders of images as cameras and computers leave them: hidden files, folders, dangling links, damaged files."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from command import run_commands


def write_images(folder: Path, count: int, suffix: str = ".jpg", first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        pixels = np.random.default_rng(number).integers(0, 256, (96, 128, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"x{number}{suffix}"), pixels)
    return folder


def add_oddities(folder: Path, suffix: str = ".jpg") -> Path:
    """What a Mac writes beside x0, another recording of a Mac, and a folder with an image's suffix."""
    for name in (f"._x0{suffix}", "._drive.mcap"):
        (folder / name).write_bytes(b"\0\5\26\7\0\2\0\0Mac OS X        " + bytes(3000))
    (folder / f"sub{suffix}").mkdir()
    return folder


def test_the_camera_names_what_it_cannot_read_and_publishes_the_rest(tmp_path: Path) -> None:
    folder = add_oddities(write_images(tmp_path / "images", 3))
    (folder / "lost.jpg").symlink_to(folder / "nowhere")
    whole = (folder / "x0.jpg").read_bytes()
    (folder / "torn.jpg").write_bytes(whole[: len(whole) // 2])
    write_images(tmp_path / "damaged", 0)
    (tmp_path / "damaged" / "x0.jpg").touch()
    done = run_commands({"some": ["camera", folder, "--rate", "50"], "none": ["camera", tmp_path / "damaged"]})
    assert done["some"].returncode == 0, done["some"].stderr
    assert "published 3 frames" in done["some"].stdout
    for word in ("sub", "lost", "torn"):
        assert f"{word}.jpg" in done["some"].stderr
    assert "._x0" not in done["some"].stderr
    assert done["none"].returncode == 1
    assert "x0.jpg" in done["none"].stderr


def test_scoring_leaves_out_hidden_files_and_folders_and_names_a_dangling_link(tmp_path: Path) -> None:
    for name in ("lanes", "linked"):
        for number, part in enumerate(("train", "val", "test")):
            for kind, suffix in (("images", ".jpg"), ("masks", ".png")):
                add_oddities(write_images(tmp_path / name / part / kind, 3, suffix, 3 * number), suffix)
    image = tmp_path / "linked" / "test" / "images" / "x8.jpg"
    image.unlink()
    image.symlink_to(tmp_path / "nowhere")
    done = run_commands({
        name: ["evaluate", "builtin:lane", "--data", f"lanes:{tmp_path / name}"] for name in ("lanes", "linked")
    })  # fmt: skip
    assert done["lanes"].returncode == 0, done["lanes"].stderr
    assert "._" not in done["lanes"].stderr
    assert "sub.jpg" in done["lanes"].stderr
    assert done["linked"].returncode == 1
    assert "x8.jpg" in done["linked"].stderr
