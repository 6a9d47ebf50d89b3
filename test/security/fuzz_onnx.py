"""Damaged and hostile ONNX files: each is refused in one line or loaded; nothing crashes, no other file is read.

The tests run some hundred files. More with

    python test/security/fuzz_onnx.py --inputs 10000 --output fuzz_onnx.json

The files of one batch are loaded in a child process of limited memory, so that a crash is attributed to its file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from tqdm import tqdm

from multi_dnn_ros import __version__
from multi_dnn_ros.common.reporting import write_json

ROOT = Path(__file__).resolve().parents[2]
#: Where a child process finds this package and this module.
PATHS = os.pathsep.join(map(str, (ROOT, Path(__file__).resolve().parent)))
#: Files of one child process.
BATCH = 100
#: Starts a new interpreter.
_RUN = partial(subprocess.run, capture_output=True, text=True, check=False)
#: Memory in bytes that loading may use in addition to that of the libraries.
MEMORY = 3 << 30
#: Longest time for one file, in seconds.
PATIENCE = 60
SECRET = b"root:x:0:0:this must not be read"
_SIZES = (-1, 0, 1, 2, 3, 7, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))


def network(rng: random.Random) -> ModelProto:
    """A small detector as exporters write it: convolution, shape chain, resize, pooling, head."""
    opset = rng.randint(11, 22)
    constants = {
        "w": np.random.default_rng(rng.randrange(99)).standard_normal((4, 3, 3, 3)).astype(np.float32),
        "one": np.array([1], np.int64),
        "minus": np.array([-1], np.int64),
        "two": np.array(2, np.int64),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "k": np.array([5], np.int64),
        "roi": np.array([], np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["p", "roi", "scales"], ["u"], mode=rng.choice(["nearest", "linear"])),
        helper.make_node("Concat", ["u", "r"], ["a"], axis=1),
        helper.make_node("Shape", ["a"], ["s"]),
        helper.make_node("Gather", ["s", "two"], ["h"]),
        helper.make_node("Constant", [], ["eight"], value=numpy_helper.from_array(np.array([8], np.int64))),
        helper.make_node("Concat", ["one", "eight", "minus"], ["shape"], axis=0),
        helper.make_node("Reshape", ["a", "shape"], ["out"]),
        helper.make_node("TopK", ["out", "k"], ["top", "where"], axis=2),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(
                "image", TensorProto.FLOAT, [1, 3, rng.choice([16, "h"]), rng.choice([16, "w"])]
            )
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    helper.set_model_props(model, {"names": "{0: 'a', 1: 'b', 2: 'c', 3: 'd'}", "stride": "4", "task": "detect"})
    return model


def flipped(rng: random.Random, file: Path) -> None:
    """Bits changed anywhere."""
    data = bytearray(network(rng).SerializeToString())
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def truncated(rng: random.Random, file: Path) -> None:
    """Cut off, or with a piece cut out, doubled or filled."""
    data = network(rng).SerializeToString()
    first, second = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    file.write_bytes(
        rng.choice(
            (
                data[:first],
                data[:first] + data[second:],
                data[:second] + data[first:],
                data[:first] + rng.randbytes(30) + data[first:],
                rng.randbytes(rng.randrange(500)),
                b"",
            )
        )
    )


def rewired(rng: random.Random, file: Path) -> None:
    """Cycles, values that nothing writes, nodes out of order, duplicate names, inputs and outputs left out."""
    model = network(rng)
    nodes = model.graph.node
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        node = rng.choice(nodes)
        names = [name for each in nodes for name in (*each.input, *each.output)] + ["", "nowhere", "out", "image"]
        kind = rng.randrange(7)
        if kind == 0 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        elif kind == 1:
            node.output[rng.randrange(len(node.output))] = rng.choice(names)
        elif kind == 2:
            node.input.append(rng.choice(names))
        elif kind == 3 and node.input:
            del node.input[-1]
        elif kind == 4:
            moved = list(nodes)
            rng.shuffle(moved)
            del nodes[:]
            nodes.extend(moved)
        elif kind == 5:
            node.op_type = rng.choice([*_OPERATORS, "", "\n\0", "x" * 5000])
        else:
            nodes.append(node)
    if rng.random() < 0.1:
        del model.graph.input[:]
    if rng.random() < 0.1:
        model.graph.output[0].name = rng.choice(["", "image", "w", "nowhere"])
    file.write_bytes(model.SerializeToString())


_OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})


def huge(rng: random.Random, file: Path) -> None:
    """Sizes, pads, repeats and shapes of any size."""
    model = network(rng)
    graph = model.graph
    size = np.array([rng.choice(_SIZES) for _ in range(rng.randint(1, 5))], np.int64)
    graph.initializer.append(numpy_helper.from_array(size, "sizes"))
    operator = rng.choice(
        (
            "ConstantOfShape",
            "Expand",
            "Tile",
            "Reshape",
            "Pad",
            "Resize",
            "Range",
            "OneHot",
            "TopK",
            "Conv",
            "MaxPool",
            "Slice",
            "Split",
            "EyeLike",
            "Einsum",
            "input",
            "claim",
        )
    )
    many = ["image", *(["sizes"] * rng.randint(0, 4))]
    if operator == "input":
        shape = [rng.choice(_SIZES) for _ in range(rng.choice((4, 4, 4, 2, 9)))]
        graph.input[0].CopyFrom(helper.make_tensor_value_info("image", TensorProto.FLOAT, shape))
    elif operator == "claim":
        tensor = rng.choice(graph.initializer)
        tensor.dims[:] = [rng.choice(_SIZES) for _ in range(rng.randint(1, 4))]
    else:
        inputs = {"ConstantOfShape": ["sizes"], "Range": ["two", "sizes", "two"], "Resize": ["image", "", "", "sizes"]}
        options: dict[str, Any] = {}
        if operator in ("Conv", "MaxPool"):
            options = {"kernel_shape": size[:2].tolist(), "pads": [rng.choice(_SIZES) for _ in range(4)]}
        if operator == "Einsum":
            options = {"equation": rng.choice(("abcd,efgh->abcdefgh", "abcd->" + "a" * 30, "...->"))}
        node = helper.make_node(operator, inputs.get(operator, many), ["big"], **options)
        graph.node.append(node)
        graph.node.append(helper.make_node("ReduceSum", ["big"], ["small"]))
        graph.output.append(helper.make_tensor_value_info(rng.choice(("big", "small")), TensorProto.FLOAT, None))
    file.write_bytes(model.SerializeToString())


def outside(rng: random.Random, file: Path) -> None:
    """Weights that the file claims are in other files."""
    model = network(rng)
    secret = file.parent.parent / "secret.bin"
    link = file.parent / "link.bin"
    if not link.is_symlink():
        link.symlink_to(secret)
    (file.parent / "own.bin").write_bytes(bytes(432))
    tensor = rng.choice(model.graph.initializer)
    where = rng.choice(
        (
            "../secret.bin",
            str(secret),
            "link.bin",
            "own.bin",
            "./../secret.bin",
            "",
            "own.bin\0",
            "x/../../secret.bin",
            "/dev/zero",
            "/proc/self/mem",
            "..",
            ".",
            "~/x",
            "..\\secret.bin",
            "missing.bin",
        )
    )
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": where}
    if rng.random() < 0.5:
        entries["offset"] = str(rng.choice(_SIZES))
    if rng.random() < 0.5:
        entries["length"] = str(rng.choice((*_SIZES, 432)))
    tensor.external_data.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in entries.items())
    file.write_bytes(model.SerializeToString())


def attributed(rng: random.Random, file: Path) -> None:
    """Attributes of wrong kinds and values, opsets that do not exist, text instead of numbers."""
    model = network(rng)
    for _ in range(rng.choice((1, 1, 3))):
        node = rng.choice(model.graph.node)
        name = rng.choice(
            ("axis", "kernel_shape", "pads", "strides", "mode", "value", "to", "dilations", "group", "auto_pad")
        )
        value = rng.choice(
            (rng.choice(_SIZES), [rng.choice(_SIZES)] * rng.randint(1, 6), "", "\0\n", 1e308, [0.5], "x" * 9999)
        )
        for old in [each for each in node.attribute if each.name == name]:
            node.attribute.remove(old)
        node.attribute.append(helper.make_attribute(name, value))
    if rng.random() < 0.3:
        model.opset_import[0].version = rng.choice((*_SIZES, 10, 30))
    if rng.random() < 0.3:
        texts = (
            "{" * 9000,
            "{0: 'a'",
            "__import__('os').system('touch hacked')",
            "[1]",
            "{5: 'a'}",
            "{'x': 1}",
            "9" * 9999,
        )
        helper.set_model_props(
            model, {"names": rng.choice(texts), "imgsz": rng.choice((*texts, "[8, 8]")), "stride": "7"}
        )
    file.write_bytes(model.SerializeToString())


def nested(rng: random.Random, file: Path) -> None:
    """Branches in branches, loops without end, constants that take for ever to compute."""
    model = network(rng)
    inner: Any = helper.make_graph([helper.make_node("Identity", ["image"], ["leaf"])], "leaf", [], [_free("leaf")])
    for level in range(rng.choice((1, 3, 15, 28))):
        name = f"level{level}"
        inner = helper.make_graph(
            [
                helper.make_node(
                    "If", ["yes"], [name], then_branch=inner, else_branch=inner if level < 3 else _leaf(level)
                )
            ],
            name,
            [],
            [_free(name)],
        )
    model.graph.initializer.append(numpy_helper.from_array(np.array(rng.random() < 0.7), "yes"))
    kind = rng.randrange(3)
    if kind == 0:
        nodes = list(inner.node)
    elif kind == 1:
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Identity", ["x"], ["y"])],
            "body",
            [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("go", 9, []), _free("x")],
            [helper.make_tensor_value_info("again", 9, []), _free("y")],
        )
        nodes = [helper.make_node("Loop", ["", "yes", rng.choice(("image", "k"))], ["looped"], body=body)]
    else:
        nodes = [helper.make_node("Add", ["k", "k"], ["d0"])]
        for step in range(rng.choice((10, 60))):
            nodes.append(helper.make_node("Concat", [f"d{step}", f"d{step}"], [f"d{step + 1}"], axis=0))
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None))
    file.write_bytes(model.SerializeToString())


def _leaf(level: int) -> Any:
    name = f"leaf{level}"
    return helper.make_graph([helper.make_node("Identity", ["image"], [name])], name, [], [_free(name)])


def _free(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "flipped": flipped,
    "truncated": truncated,
    "rewired": rewired,
    "huge": huge,
    "outside": outside,
    "attributed": attributed,
    "nested": nested,
}


def make(folder: Path, numbers: range, seed: int) -> list[Path]:
    """Write files number.kind.onnx, the same for the same seed, to a folder next to a secret file."""
    inside = folder / "models"
    inside.mkdir(parents=True)
    (folder / "secret.bin").write_bytes(SECRET * 100)
    kinds = list(KINDS)
    files = []
    for number in numbers:
        kind = kinds[number % len(kinds)]
        file = inside / f"{number}.{kind}.onnx"
        KINDS[kind](random.Random(f"{kind} {seed} {number}"), file)
        files.append(file)
    return files


def load_all(folder: Path) -> None:
    """The child: load each file as the node does, and write a line about it before and after."""
    import torch

    from multi_dnn_ros.models import onnx_source
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.models.load import check_dnn, load_dnn
    from multi_dnn_ros.settings.schema import DnnConfig

    verify = onnx_source.verify
    torch.set_num_threads(1)
    import multi_dnn_ros.models.onnx_intake.converters  # noqa: F401

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    for file in sorted(folder.glob("*.onnx"), key=lambda each: int(each.name.partition(".")[0])):
        print(json.dumps({"begin": file.name}), flush=True)
        config = DnnConfig(
            role="object", model=str(file), decoder="yolo", labels=list("abcd"), input_width=16, input_height=16
        )
        # Comparing with ONNX Runtime takes a separate process, so only every tenth file is compared.
        onnx_source.verify = verify if int(file.name.partition(".")[0]) % 10 == 0 else lambda *given: None
        outcome, begin = "loaded", time.perf_counter()
        for step in (check_dnn, load_dnn):
            try:
                step("x", config)
            except ModelError as error:
                outcome = str(error)
            except BaseException as error:  # a finding
                outcome = f"FINDING {step.__name__}: {type(error).__name__}: {error}"[:400]
                break
        print(json.dumps({"end": file.name, "outcome": outcome, "s": time.perf_counter() - begin}), flush=True)


def problem(file: Path, outcome: str, seconds: float) -> str:
    """What is wrong with the outcome of loading a file; empty if nothing is."""
    if outcome.startswith("FINDING"):
        return outcome
    if SECRET.decode()[:10] in outcome:
        return "the message holds the content of another file"
    for line in (
        outcome.splitlines() if outcome != "loaded" else ()
    ):  # parameters may have several problems, a line each
        if file.name not in line and "dnn.x" not in line:
            return f"a line does not name the file: {line[:300]!r}"
    if len(outcome) > 1500:
        return f"a message of {len(outcome)} characters: {outcome[:200]!r}"
    return f"took {seconds:.0f} s" if seconds > PATIENCE else ""


def run_batch(
    numbers: range, seed: int, run: Callable[..., subprocess.CompletedProcess[str]] = _RUN
) -> tuple[list[dict[str, str]], dict[str, int]]:
    """Findings of the files `numbers`, and how many were loaded and refused. run: ForkServer.run starts forks."""
    findings: list[dict[str, str]] = []
    counts = {"loaded": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as name:
        files = make(Path(name), numbers, seed)
        while files:
            command = [sys.executable, "-m", "fuzz_onnx", "--child", str(files[0].parent)]
            environment = {**os.environ, "XDG_CACHE_HOME": str(Path(name) / "cache"), "PYTHONPATH": PATHS}
            try:
                done = run(command, timeout=PATIENCE * len(files), env=environment, errors="replace")
                output, code = done.stdout, done.returncode
                last = done.stderr[-300:]
            except subprocess.TimeoutExpired as expired:
                output, code, last = (expired.stdout or b"").decode(errors="replace"), -1, "timeout"
            lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
            for line in lines:
                if "end" not in line:
                    continue
                counts["loaded" if line["outcome"] == "loaded" else "refused"] += 1
                found = problem(Path(line["end"]), line["outcome"], line["s"])
                if found:
                    findings.append({"file": f"{line['end']} (seed {seed})", "problem": found})
            begun = [line["begin"] for line in lines if "begin" in line]
            ended = {line["end"] for line in lines if "end" in line}
            crashed = [each for each in begun if each not in ended]
            if not code and not crashed:
                break
            what = crashed[0] if crashed else "before the first file"
            findings.append({"file": f"{what} (seed {seed})", "problem": f"the process ended with {code}: {last}"})
            done_names = {*ended, *crashed}
            for file in files:
                if file.name in done_names:
                    file.unlink()
            files = [file for file in files if file.name not in done_names] if crashed else []
        if (Path.cwd() / "hacked").exists():
            findings.append({"file": f"{numbers} (seed {seed})", "problem": "metadata was run"})
    return findings, counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        load_all(args.child)
        return 0
    findings: list[dict[str, str]] = []
    counts = {"loaded": 0, "refused": 0}
    begin = time.perf_counter()
    with tqdm(total=args.inputs, unit="file", disable=None) as bar:
        for first in range(0, args.inputs, BATCH):
            numbers = range(first, min(first + BATCH, args.inputs))
            found, counted = run_batch(numbers, args.seed)
            findings += found
            counts = {key: counts[key] + counted[key] for key in counts}
            bar.update(len(numbers))
            for finding in found:
                print(finding, flush=True)
    seconds = round(time.perf_counter() - begin, 1)
    print(
        f"{args.inputs} files: {counts['loaded']} loaded, {counts['refused']} refused, "
        f"{len(findings)} findings, {seconds} s"
    )
    if args.output:
        command = f"python test/security/fuzz_onnx.py --inputs {args.inputs} --seed {args.seed} --output {args.output}"
        versions = {"multi_dnn_ros": __version__, "python": platform.python_version(), "onnx": onnx.__version__}
        write_json(
            args.output,
            {
                "command": command,
                "versions": versions,
                "inputs": args.inputs,
                **counts,
                "findings": findings,
                "seconds": seconds,
            },
        )
    return int(bool(findings))


if __name__ == "__main__":
    raise SystemExit(main())
