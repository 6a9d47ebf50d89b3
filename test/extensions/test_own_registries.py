"""The registries have every specification of this package: one that is not listed in OWN could not be chosen."""

from __future__ import annotations

import ast

from source_trees import ROOT, source_trees

from multi_dnn_ros.common.extensions import OWN

#: Class of the specifications of each registry.
CLASSES = {"BackendSpec", "DecoderSpec", "ModelSource", "ResultKind"}


def specifications() -> dict[str, str]:
    """By reference, as in OWN: the class of each specification at the top level of a module."""
    found = {}
    for path, tree in source_trees().items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                function, (target, *_) = node.value.func, node.targets
                if isinstance(function, ast.Name) and function.id in CLASSES and isinstance(target, ast.Name):
                    found[f"{module}:{target.id}"] = function.id
    return found


def test_the_registries_list_exactly_the_specifications_of_this_package() -> None:
    found = specifications()
    assert set(found.values()) == CLASSES
    listed = {f"multi_dnn_ros.{reference}" for group in OWN.values() for reference in group.values()}
    assert listed == found.keys(), "see OWN of multi_dnn_ros/common/extensions.py"
