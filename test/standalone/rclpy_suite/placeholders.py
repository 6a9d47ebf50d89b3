"""Imports of rclpy's test files: a name that the runtime does not claim is imported as a placeholder.

Otherwise, one such name among a file's imports would prevent all tests of the file from running. A placeholder raises
the runtime's own error as soon as it is called, indexed, iterated over, compared, subclassed or entered as a context
manager, or one of its attributes is read. The attribute `handle` of a node and other entities, a C object of rclpy, is
a placeholder, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from multi_dnn_ros.standalone import finder
from multi_dnn_ros.standalone.missing import MissingFeatureError, Surface


class Placeholder:
    """Stands for a name that is not claimed."""

    def __init__(self, error: MissingFeatureError) -> None:
        object.__setattr__(self, "_error", error)

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise MissingFeatureError(str(self._error), name=self._error.name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__msgtype__":
            raise AttributeError(name)  # Python and pytest look for such names
        return self._raise()

    __call__ = __mro_entries__ = __instancecheck__ = __subclasscheck__ = __iter__ = __eq__ = __lt__ = __getitem__ = (
        _raise
    )
    __setattr__ = __enter__ = __exit__ = __or__ = __ror__ = __str__ = __int__ = __float__ = __len__ = _raise
    __hash__ = object.__hash__
    __class__ = property(_raise)  # type: ignore[assignment]  # isinstance() looks at it


class _PlaceholderModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(self._error)


class _Finder(MetaPathFinder, Loader):
    """Asked before the runtime's finder: makes a placeholder module where that one raises."""

    def __init__(self, real: finder.StandaloneFinder) -> None:
        self._real = real
        self._errors: dict[str, MissingFeatureError] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        try:
            return self._real.find_spec(fullname, path, target)
        except MissingFeatureError as error:
            self._errors[fullname] = error
            return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _PlaceholderModule(spec.name)
        module._error = self._errors[spec.name]  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


def install() -> None:
    """Make imports of unclaimed names return placeholders in this process; call it after `standalone.install()`."""
    (real,) = (entry for entry in sys.meta_path if isinstance(entry, finder.StandaloneFinder))
    sys.meta_path.insert(sys.meta_path.index(real), _Finder(real))
    for module_class in (finder._SurfaceModule, finder._InterfaceModule):
        _patch_module_class(module_class)
    _patch_handles()


def _patch_module_class(module_class: Any) -> None:
    resolve = module_class.__getattr__

    def resolve_or_placeholder(self: ModuleType, name: str) -> Any:
        try:
            return resolve(self, name)
        except MissingFeatureError as error:
            return Placeholder(error)

    module_class.__getattr__ = resolve_or_placeholder


def _patch_handles() -> None:
    # Many tests only check that an entity's `handle` is not None, and test something else.
    refuse = Surface.__getattr__

    def refuse_or_placeholder(self: Surface, name: str) -> Any:
        try:
            return refuse(self, name)
        except AttributeError as error:
            if name != "handle":
                raise
            return Placeholder(MissingFeatureError(str(error), name=name))

    Surface.__getattr__ = refuse_or_placeholder  # type: ignore[method-assign]
