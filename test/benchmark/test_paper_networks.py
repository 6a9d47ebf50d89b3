"""``multi-dnn benchmark paper --artifacts``: the scored networks are run, and a table does not mix networks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multi_dnn_ros.benchmark.paper.evaluated import RANDOM, files_of, manifest, mixed, remarks
from multi_dnn_ros.benchmark.paper.networks import example_image, make_network, ratio_plan
from multi_dnn_ros.benchmark.paper.report import merged
from multi_dnn_ros.benchmark.paper.sets import SETS
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.models.artifact import Description, save_artifact

NETWORK = next(network for network in SETS["small"].networks if network.builder == "squeezenet1_1")


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A folder as `controlled` writes it; the networks were scored at another size than the set runs them at."""
    entry: dict[str, Any] = {"data": "classes:x", "size": [32, 32]}
    for role, alignment in (("original", None), ("decomposed", 1)):
        torch.manual_seed(3)
        module = make_network(NETWORK, alignment=alignment)
        plan = ratio_plan(make_network(NETWORK), NETWORK, 1) if alignment else {}
        path = tmp_path / f"{role}.safetensors"
        description = Description(
            model="torchvision:squeezenet1_1", num_classes=10, input_size=(32, 32), plan=dict(plan)
        )
        save_artifact(path, module, description)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        entry[role] = {"file": path.name, "sha256": digest, "scores": {"top1": 0.25}}
    (tmp_path / "networks.json").write_text(json.dumps({"squeezenet1_1": entry}))
    return tmp_path


def test_every_condition_runs_the_files_that_were_scored(scored: Path) -> None:
    image = example_image(NETWORK)
    originals = [make_network(NETWORK, artifacts=scored) for _ in range(2)]
    assert torch.equal(originals[0](image), originals[1](image))
    # The paper's ranks and those of the engine's conditions are one network.
    small = [make_network(NETWORK, artifacts=scored, alignment=alignment) for alignment in (1, 8, 32)]
    assert all(torch.equal(small[0](image), other(image)) for other in small)
    assert not torch.equal(small[0](image), originals[0](image))
    files = files_of([NETWORK], scored)
    assert files["squeezenet1_1"]["decomposed"]["sha256"] == hashlib.sha256(
        (scored / "decomposed.safetensors").read_bytes()
    ).hexdigest()  # fmt: skip
    (line,) = remarks(files)
    assert "original original.safetensors (" in line
    assert "top-1 0.2500" in line
    assert "scored on classes:x at 32 px" in line


def test_a_file_other_than_the_scored_one_is_refused(scored: Path) -> None:
    with pytest.raises(CommandError, match="lacks resnet18; it has squeezenet1_1"):
        make_network(replace(NETWORK, builder="resnet18"), artifacts=scored)
    original, small = scored / "original.safetensors", scored / "decomposed.safetensors"
    content = json.loads((scored / "networks.json").read_text())
    kept = original.read_bytes()
    original.write_bytes(small.read_bytes())
    with pytest.raises(CommandError, match="that of the scored network"):
        make_network(NETWORK, artifacts=scored)
    content["squeezenet1_1"]["original"]["sha256"] = content["squeezenet1_1"]["decomposed"]["sha256"]
    (scored / "networks.json").write_text(json.dumps(content))
    with pytest.raises(CommandError, match="holds decomposed torchvision:squeezenet1_1; expected original"):
        make_network(NETWORK, artifacts=scored)
    original.write_bytes(kept)
    original.unlink()
    with pytest.raises(CommandError, match=r"networks\.json names it"):
        make_network(NETWORK, artifacts=scored)
    for damaged in ("{", "[1]", '{"squeezenet1_1": {}}'):
        (scored / "networks.json").write_text(damaged)
        with pytest.raises(CommandError, match="not written by"):
            manifest(scored)


def result(path: Path, name: str, networks: dict[str, Any] | None, settings: dict[str, Any] | None = None) -> Path:
    set_results: dict[str, Any] = {"dnns": ["vgg16"], "conditions": {}}
    if networks is not None:
        set_results["networks"] = networks
    content = {"scenario": "paper", "command": "x", "settings": settings or {}, "sets": {name: set_results}}
    path.write_text(json.dumps(content))
    return path


def test_a_table_does_not_mix_networks(tmp_path: Path) -> None:
    def entry(digest: str) -> dict[str, Any]:
        return {
            "vgg16": {role: {"file": f"{role}.safetensors", "sha256": digest} for role in ("original", "decomposed")}
        }

    one, same, other, random, old = (
        result(tmp_path / f"{number}.json", f"set{number}", networks)
        for number, networks in enumerate((entry("a"), entry("a"), entry("b"), {"vgg16": RANDOM}, None))
    )
    assert set(merged([one, same])["sets"]) == {"set0", "set1"}
    assert set(merged([random, old])["sets"]) == {"set3", "set4"}
    for with_other in (other, random, old):
        with pytest.raises(CommandError, match="the files mix networks: vgg16 is not the same network in set0 and set"):
            merged([one, with_other])
    assert mixed({}) == []


def test_a_table_may_have_scored_networks_of_several_folders(tmp_path: Path) -> None:
    """Their checksums say which networks they are. Without checksums, only the folder does."""

    def results(networks: list[dict[str, Any] | None]) -> list[Path]:
        return [
            result(tmp_path / f"{name}.json", name, each, {"artifacts": f"/nets/{name}", "jobs": 8})
            for name, each in zip("ab", networks, strict=True)
        ]

    scored: list[dict[str, Any] | None] = [
        {name: {role: {"file": f"{role}.safetensors", "sha256": name} for role in ("original", "decomposed")}}
        for name in ("vgg16", "resnet152")
    ]
    content = merged(results(scored))
    assert set(content["sets"]) == {"a", "b"}
    assert content["settings"] == {"artifacts": "/nets/a, /nets/b", "jobs": 8}
    for without in (scored[0], None):
        with pytest.raises(CommandError, match="settings artifacts: /nets/a and /nets/b"):
            merged(results([without, None]))


def test_decomposed_files_next_to_random_originals_are_named(tmp_path: Path) -> None:
    assert files_of([NETWORK], None) == files_of([NETWORK], tmp_path) == {"squeezenet1_1": RANDOM}
    (tmp_path / "squeezenet1_1.safetensors").write_bytes(b"x")
    files = files_of([NETWORK], tmp_path)
    assert files["squeezenet1_1"]["original"]["file"] == RANDOM
    assert "decomposed squeezenet1_1.safetensors (2d711642b726, not scored)" in remarks(files)[0]
