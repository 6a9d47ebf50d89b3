"""A role is a label; some roles have defaults."""

from __future__ import annotations

import pytest

from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.forms import PRESETS


@pytest.mark.parametrize("role", PRESETS)
def test_a_role_with_defaults_has_a_model_that_gives_its_kind_of_results(role: str) -> None:
    settings = to_config({"dnns": ["mine"], "dnn.mine.role": role}).dnns["mine"]
    assert settings.model == PRESETS[role].model
    assert load_dnn("mine", settings).result_kind == PRESETS[role].result_kind


def test_any_label_is_a_role_of_a_dnn_that_says_what_it_is() -> None:
    flat = {"dnns": ["mine"], "dnn.mine.role": "traffic_light", "dnn.mine.model": "builtin:object"}
    dnn = load_dnn("mine", to_config(flat).dnns["mine"])
    assert (dnn.role, dnn.result_kind, dnn.labels) == ("traffic_light", "detections", ("car", "truck"))
