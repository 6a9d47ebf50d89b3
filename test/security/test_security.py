"""Untrusted input: nothing it says is believed, nothing it names is run."""

from __future__ import annotations

import ast

from source_trees import ROOT, source_trees


def test_no_shell_and_no_code_from_data_anywhere() -> None:
    """Calls that run what data says, by name; subprocesses get a list of arguments and no shell."""
    forbidden = {"eval", "exec", "system", "popen"}
    # Its data comes over a socket pair from a process that the node itself has started, never from a file or a network.
    private = {ROOT / "multi_dnn_ros" / "serving" / name for name in ("messages.py",)}
    found = []
    for path, tree in source_trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                modules = {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module}
                # The error's name is needed to catch it; a Pickler only writes; Unpickler may be restricted, see below.
                names = {alias.name for alias in node.names} - {"UnpicklingError", "Pickler", "Unpickler"}
                if path not in private and names and modules & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}:
                    found.append(f"{path}:{node.lineno} imports {names}")
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Unpickler" for base in node.bases):
                own = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
                if "find_class" not in own:
                    found.append(f"{path}:{node.lineno} unpickles whatever the file names")
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            base = node.func.value if isinstance(node.func, ast.Attribute) else None
            owner = base.id if isinstance(base, ast.Name) else ""
            if (
                name == "Unpickler"
                or name in forbidden
                or (owner == "os" and attribute in forbidden)
                or attribute == "unsafe_load"
            ):
                found.append(f"{path}:{node.lineno} calls {name or attribute}")
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            if isinstance(keywords.get("shell"), ast.Constant) and keywords["shell"].value:
                found.append(f"{path}:{node.lineno} starts a shell")
            if owner == "torch" and attribute == "load" and "weights_only" not in keywords:
                found.append(f"{path}:{node.lineno} torch.load without weights_only")
            if owner in ("np", "numpy") and attribute == "load" and "allow_pickle" in keywords:
                found.append(f"{path}:{node.lineno} numpy.load with allow_pickle")
    assert found == []
