"""Folders of images as cameras and computers leave them: hidden files, folders, dangling links, damaged files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from command import multi_dnn
from small_recordings import write_recording

#: What a Mac writes beside x.jpg on a disk of another kind.
_APPLE_DOUBLE = b"\0\5\26\7\0\2\0\0Mac OS X        " + bytes(3000)


def write_images(folder: Path, count: int, suffix: str = ".jpg", first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        pixels = np.random.default_rng(number).integers(0, 256, (96, 128, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"x{number}{suffix}"), pixels)
    return folder


def hidden_file(folder: Path, suffix: str) -> None:
    (folder / f"._x0{suffix}").write_bytes(_APPLE_DOUBLE)


def subfolder(folder: Path, suffix: str) -> None:
    (folder / f"sub{suffix}").mkdir()


def dangling_link(folder: Path, suffix: str) -> None:
    (folder / f"lost{suffix}").symlink_to(folder / "nowhere")


def damaged_file(folder: Path, suffix: str) -> None:
    whole = (folder / f"x0{suffix}").read_bytes()
    (folder / f"torn{suffix}").write_bytes(whole[: len(whole) // 2])


#: What is put into a folder -> the name that a command says it has left out.
ODDITIES: dict[Callable[[Path, str], None], str] = {
    hidden_file: "", subfolder: "sub", dangling_link: "lost", damaged_file: "torn",
}  # fmt: skip


def test_the_camera_names_what_it_cannot_read_and_publishes_the_rest(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 3)
    for add in ODDITIES:
        add(folder, ".jpg")
    done = multi_dnn("camera", folder, "--rate", "50")
    assert done.returncode == 0, done.stderr
    assert "published 3 frames" in done.stdout
    for word in ODDITIES.values():
        assert f"{word}.jpg" in done.stderr
    assert "._x0" not in done.stderr


def test_a_folder_whose_images_are_all_damaged_is_an_error(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 1)
    (folder / "x0.jpg").write_bytes(b"")
    done = multi_dnn("camera", folder)
    assert done.returncode == 1
    assert "x0.jpg" in done.stderr


def test_a_folder_with_hidden_recordings_is_a_folder_of_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 1)
    (folder / "._drive.mcap").write_bytes(_APPLE_DOUBLE)
    done = multi_dnn("camera", folder)
    assert done.returncode == 0, done.stderr


def write_lanes(folder: Path) -> Path:
    """Data `lanes`; the folder of the images that are scored."""
    for number, part in enumerate(("train", "val", "test")):
        images = write_images(folder / part / "images", 3, first=3 * number)
        masks = write_images(folder / part / "masks", 3, ".png", first=3 * number)
        for suffix, place in ((".jpg", images), (".png", masks)):
            for add in (hidden_file, subfolder):
                add(place, suffix)
    return images


def test_scoring_takes_neither_hidden_files_nor_folders_for_images(tmp_path: Path) -> None:
    write_lanes(tmp_path / "lanes")
    done = multi_dnn("evaluate", "builtin:lane", "--data", f"lanes:{tmp_path / 'lanes'}")
    assert done.returncode == 0, done.stderr
    assert "._" not in done.stderr
    assert "sub.jpg" in done.stderr


def test_scoring_names_a_dangling_link_before_the_first_image(tmp_path: Path) -> None:
    image = write_lanes(tmp_path / "lanes") / "x8.jpg"
    image.unlink()
    image.symlink_to(tmp_path / "nowhere")
    done = multi_dnn("evaluate", "builtin:lane", "--data", f"lanes:{tmp_path / 'lanes'}")
    assert done.returncode == 1
    assert "x8.jpg" in done.stderr


def test_the_folder_of_check_images_may_hold_hidden_files_and_folders(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 2)
    for add in (hidden_file, subfolder):
        add(folder, ".jpg")
    parameters = tmp_path / "dnn.yaml"
    parameters.write_text(
        f"/**:\n  ros__parameters:\n    dnns: [object]\n    dnn: {{object: {{check_images: {folder}}}}}\n"
    )
    drive = write_recording(tmp_path / "drive", 1)
    done = multi_dnn("replay", drive, tmp_path / "out", "--params-file", parameters)
    assert done.returncode == 0, done.stderr
    assert "._x0" not in done.stderr
