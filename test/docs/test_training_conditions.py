"""Teacher, augmentation, epochs and labels of a network are beside its scores, as its file has them.

If a table differs, the message of the failed test is the table that belongs there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors
from pages import PAGES, ROOT

#: Who made the labels, by the kind of a data set.
_LABELS = {"road": "the scene generator", "coco": "YOLOX-nano and COCO", "drive": "a public lane network"}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)).replace(
        "| --- ", "|---"
    )


def schedule(of: Mapping[str, Any]) -> str:
    return f"{of['epochs']}, {of['optimizer']}, {of['lr']:g}"


def accuracy_section() -> str:
    page = PAGES["docs/measured.md"]
    return page[page.index("\n## Accuracy against MACs\n") : page.index("\n## Installation\n")]


def percent(of: Mapping[str, float]) -> str:
    return f"{100 * of['mean']:.2f} ± {100 * of['deviation']:.2f}"


def controlled_row(name: str) -> list[str]:
    content = json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    settings, summary = content["settings"], content["summary"]
    assert summary["control"]["seeds"] == summary["decomposed"]["seeds"] == 3
    return [
        f"[`{settings['model'].partition(':')[2]}`](../results/{name})",
        f"{settings['size'][0]} px",
        schedule(settings["original"]),
        f"{100 * content['original']['after']['top1']:.2f}",
        f"{100 * content['cost']['macs_cut']:.1f} %",
        f"{100 * content['runs']['decomposed 0']['before']['top1']:.2f}",
        schedule(settings["retraining"]),
        percent(summary["control"]),
        percent(summary["decomposed"]),
        f"{100 * summary['against_control']:.2f}",
    ]


def test_every_network_with_a_control_has_its_training_beside_it() -> None:
    names = [path.name for path in sorted((ROOT / "results").glob("controlled_*.json"))]
    finished = [name for name in names if not name.endswith("_unfinished.json")]
    assert finished
    header = ("network", "input", "original: epochs, optimizer, lr", "top-1", "MACs removed", "top-1 before retraining",
              "further training: epochs, optimizer, lr", "control", "decomposed", "difference")  # fmt: skip
    expected = table(header, [controlled_row(name) for name in finished])
    assert expected in accuracy_section(), f"docs/measured.md#accuracy-against-macs lacks this table:\n{expected}"


def training_of(name: str) -> dict[str, Any]:
    """Of a network of the package: as its file says."""
    path = ROOT / "multi_dnn_ros" / "weights" / f"{name}.safetensors"
    with safetensors.safe_open(path, "numpy") as file:
        metadata = file.metadata()
    training: dict[str, Any] = (
        json.loads(metadata["training"]) if "training" in metadata else json.loads(metadata["provenance"])["training"]
    )
    return training


def sources_of(data: Any) -> list[str]:
    """Kinds of data: of a list as `--data` takes it, or of a description by parts."""
    if isinstance(data, list):
        return [name.partition(":")[0] for name in data]
    names = {"train": "road", "real": "coco", "road": "drive"}
    return [names[key] for key in data if key in names]


def network_row(name: str) -> list[str]:
    training = training_of(name)
    data, teacher = training["data"], training.get("teacher")
    return [
        f"`builtin:{name}`",
        "; ".join(f"{source}: {_LABELS[source]}" for source in sources_of(data)),
        schedule(training["schedule"]),
        f"`{teacher['model']}`, {teacher['weight']:g}" if teacher else "none",
        str(training["batch_size"]),
        str(training["schedule"]["seed"]),
    ]


def test_the_built_in_networks_have_their_training_beside_their_scores() -> None:
    names = sorted(path.stem for path in (ROOT / "multi_dnn_ros" / "weights").glob("*.safetensors"))
    header = (
        "network",
        "data: who labelled it",
        "last training: epochs, optimizer, lr",
        "teacher, weight",
        "batch",
        "seed",
    )
    expected = table(header, [network_row(name) for name in names])
    assert expected in PAGES["docs/models.md"], f"docs/models.md#training lacks this table:\n{expected}"
