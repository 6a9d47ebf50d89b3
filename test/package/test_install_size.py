"""tools/install_size.py compares the imports of two revisions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = "import multi_dnn_ros.common.errors"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_size", ROOT / "tools" / "install_size.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_code_that_an_earlier_revision_does_not_have_is_left_out(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "multi_dnn_ros").mkdir()
    (tmp_path / "multi_dnn_ros" / "__init__.py").touch()
    found = tool.imports({"before": tmp_path, "after": ROOT}, CODE, 2)
    assert found["before"] == {"error": "No module named 'multi_dnn_ros.common'"}
    assert found["after"]["import_s"] >= 0.0
    assert found["after"]["torch"] is False
    with pytest.raises(RuntimeError, match=r"No module named 'multi_dnn_ros\.common'"):
        tool.imports({"before": ROOT, "after": tmp_path}, CODE, 1)
