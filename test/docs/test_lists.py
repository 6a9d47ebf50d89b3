"""Pages that list what can be chosen name all of it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from pages import PAGES, inline_code

from multi_dnn_ros.engine.policies import POLICIES
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.statistics import TIMINGS
from multi_dnn_ros.training.data_kinds import DATA_KINDS
from multi_dnn_ros.vision.image_decoding import ENCODINGS


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/scheduling.md", POLICIES),
        ("docs/troubleshooting.md", [reason.value for reason in DropReason]),
        ("docs/troubleshooting.md", TIMINGS),
        ("docs/training.md", DATA_KINDS),
    ],
)
def test_a_page_names_every_choice(page: str, names: Iterable[str]) -> None:
    words = {word for code in inline_code(PAGES[page]) for word in re.findall(r"[\w-]+", code)}
    assert set(names) - words == set(), page


def test_the_readme_lists_the_encodings() -> None:
    (row,) = re.findall(r"^\| in `front/image_raw` \|.*", PAGES["README.md"], re.M)
    named = set(re.findall(r"\w+", row))
    named |= {name for name in ENCODINGS if name.startswith("bayer_") and f"{re.sub('.*[a-z]', '', name)}-bit" in row}
    assert ENCODINGS.keys() - named == set()
