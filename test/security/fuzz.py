"""Mutated images and parameters against the code that reads them: an error of the right kind, or a result.

The tests run a few thousand inputs; a million and more were run once with

    python test/security/fuzz.py --inputs 1200000 --output results/fuzz.json
"""

from __future__ import annotations

import argparse
import platform
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm

from multi_dnn_ros import __version__
from multi_dnn_ros.common.frame_error import FrameError
from multi_dnn_ros.common.reporting import write_json
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.parameter_fields import ParameterError, parameter_fields
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.vision.image_decoding import ENCODINGS, ImageSettings, decode_compressed, decode_image

MAX_PIXELS = 4096
_NUMBERS = (0, 1, 2, 3, 7, 8, 16, 255, 256, 4095, 65535, 2**31 - 1, 2**31, 2**32 - 1)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change, cut out or double a few bytes, or insert an extreme number or random bytes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0 and changed:
            changed[min(at, len(changed) - 1)] = rng.randrange(256)
        elif kind == 1:
            del changed[at : at + rng.randint(1, 16)]
        elif kind == 2:
            changed[at:at] = changed[at : at + rng.randint(1, 16)]
        elif kind == 3:
            changed[at : at + 4] = rng.choice(_NUMBERS).to_bytes(4, rng.choice(("little", "big")))
        else:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(changed)


def raw_image(rng: random.Random) -> None:
    """decode_image: any claim, any amount of data."""
    width, height = (rng.choice((*_NUMBERS, *range(1, 40))) for _ in range(2))
    encoding = rng.choice((*ENCODINGS, "", "32FC1", "rgb8 ", "\0", "nv99"))
    step = rng.choice((width, 2 * width, 3 * width, 4 * width, 6 * width, width + 3, rng.choice(_NUMBERS)))
    size = rng.choice((step * height, step * height * 3 // 2, rng.randrange(2000)))
    message = SimpleNamespace(
        width=width, height=height, encoding=encoding, step=step, is_bigendian=rng.randrange(3),
        data=rng.randbytes(size if size <= 40_000 else rng.randrange(100)),
    )  # fmt: skip
    try:
        image = decode_image(message, ImageSettings("front", MAX_PIXELS))
    except FrameError:
        return
    assert image.shape == (height, width, 3)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous


def _files() -> list[bytes]:
    picture = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    made = [cv2.imencode(end, picture)[1].tobytes() for end in (".jpg", ".png", ".webp", ".bmp")]
    progressive = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    return [*made, progressive, cv2.imencode(".png", picture.astype(np.uint16))[1].tobytes()]


_FILES = _files()


def compressed_image(rng: random.Random) -> None:
    """decode_compressed: damaged files."""
    message = SimpleNamespace(
        format=rng.choice(("jpeg", "png", "", "rgb8; jpeg")), data=mutate(rng.choice(_FILES), rng)
    )
    try:
        image = decode_compressed(message, ImageSettings("front", MAX_PIXELS))
    except FrameError:
        return
    assert image.ndim == 3
    assert image.shape[0] * image.shape[1] <= MAX_PIXELS


_FIELDS = parameter_fields(("front",), ("object",))
_VALUES = (True, False, 0, 1, -1, 2**63, 1e308, float("nan"), float("inf"), "", "auto", "x" * 300, "\0", "../../etc",
           [], [""], ["front", "front"], ["a", 1], [1.5], None, b"raw", "builtin:object", "cuda:99999999")  # fmt: skip


def parameters(rng: random.Random) -> None:
    """to_config: any names and values."""
    names = [
        *rng.sample(list(_FIELDS), rng.randint(1, 4)),
        rng.choice(("cameras", "dnns", "dnn.object.modle", "x", "")),
    ]
    try:
        to_config({"dnns": ["object"], **{name: rng.choice(_VALUES) for name in names}})
    except ParameterError:
        return


_TOKENS = (
    *(
        "/**:",
        "ros__parameters:",
        "\n",
        "  ",
        "    ",
        ": ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&a ",
        "*a",
        "|",
        ">",
        "'",
        '"',
    ),
    *("!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!binary ", "!!set ", "!!python/name:os.system ", "#", "---\n"),
    *("2001-99-99", "1:99", "0b", ".nan", "-.inf", "1e999", "9" * 5000, "true", "x", "\0", "\t", "\u2028", "\xff", "?"),
    *("cameras", "dnns", "dnn", "object", "device", "workers"),
)
_PLAIN = (
    "/**:\n  ros__parameters:\n    cameras: [front]\n    dnns: [object]\n    dnn: {object: {jobs: 2}}\n    workers: 1\n"
)


def parameter_file(rng: random.Random) -> None:
    """read_params_file: any text."""
    text = _PLAIN
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_TOKENS) + text[at + rng.choice((0, 0, 1, 4, 12)) :]
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(text.encode())
        file.flush()
        try:
            read_params_file(file.name)
        except ParameterError as problem:
            if file.name not in str(problem):
                raise ValueError("the error does not name the file") from problem


TARGETS: dict[str, tuple[Callable[[random.Random], None], float]] = {
    "raw_image": (raw_image, 0.5),
    "compressed_image": (compressed_image, 0.4),
    "parameters": (parameters, 0.09),
    "parameter_file": (parameter_file, 0.01),
}


def fuzz(inputs: int, seed: int, progress: Callable[[int], object] = lambda count: None) -> dict[str, Any]:
    """Run every target with its share of `inputs`. Another error is a finding, with the seed that repeats it."""
    report: dict[str, Any] = {}
    for name, (target, part) in TARGETS.items():
        count, findings, begin = round(inputs * part), [], time.perf_counter()
        for number in range(count):
            try:
                target(random.Random(f"{name} {seed} {number}"))
            except Exception as error:  # a finding
                findings.append({"input": f"{name} {seed} {number}", "error": f"{type(error).__name__}: {error}"[:300]})
            if number % 1000 == 999:
                progress(1000)
        report[name] = {"inputs": count, "findings": findings, "seconds": round(time.perf_counter() - begin, 1)}
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tqdm(total=args.inputs, unit="input", disable=None) as bar:
        targets = fuzz(args.inputs, args.seed, bar.update)
    for name, of in targets.items():
        print(f"{name}: {of['inputs']} inputs, {len(of['findings'])} findings, {of['seconds']} s")
        for finding in of["findings"][:5]:
            print(f"  {finding}")
    if args.output:
        command = f"python test/security/fuzz.py --inputs {args.inputs} --seed {args.seed} --output {args.output}"
        versions = {
            "multi_dnn_ros": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "opencv": cv2.__version__,
        }
        inputs = sum(of["inputs"] for of in targets.values())
        write_json(args.output, {"command": command, "versions": versions, "inputs": inputs, "targets": targets})
    return int(any(of["findings"] for of in targets.values()))


if __name__ == "__main__":
    raise SystemExit(main())
