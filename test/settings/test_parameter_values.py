"""The values that the schema allows are those that the packages implement, which do not import the schema."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from multi_dnn_ros.backends import precision
from multi_dnn_ros.backends.registry import ALL_PRECISIONS, BACKENDS
from multi_dnn_ros.engine import policies
from multi_dnn_ros.settings.flat_parameters import fields_of
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

#: Section of the schema, parameter, table of the implementations, where that table is.
TABLES = [
    (NodeConfig, "policy", policies.POLICIES, "POLICIES of multi_dnn_ros/engine/policies.py"),
    (DnnConfig, "precision", precision.PRECISIONS, "PRECISIONS of multi_dnn_ros/backends/precision.py"),
]


@pytest.mark.parametrize(("section", "name", "implemented", "place"), TABLES, ids=[name for _, name, _, _ in TABLES])
def test_each_allowed_value_is_implemented(section: type[BaseModel], name: str, implemented: object, place: str):
    allowed = fields_of(section)[name].allowed.split(", ")
    assert allowed == list(implemented), f"the schema allows other values of {name} than {place} has"


def test_the_precisions_of_backends_are_those_of_the_table():
    named = {name for spec in BACKENDS.usable() for names in spec.precisions.values() for name in names}
    assert named | set(ALL_PRECISIONS) <= set(precision.PRECISIONS)
