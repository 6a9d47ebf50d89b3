"""Import hook that makes `rclpy` and the message packages of the standalone runtime importable."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from multi_dnn_ros.standalone import interfaces, messages
from multi_dnn_ros.standalone.missing import MissingFeatureError, missing
from multi_dnn_ros.standalone.surface import SURFACE

_ORIGIN: Final = "multi_dnn_ros.standalone"
_lock = threading.Lock()
_replaced: dict[tuple[str, str], Any] = {}  # (module, name) -> value before a program replaced it


def _missing(name: str) -> MissingFeatureError:
    return MissingFeatureError(missing(name), name=name)


class _SurfaceModule(ModuleType):
    """`rclpy` or one of its submodules: resolves the listed names, rejects all others."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # for `from ... import *`
            return self.__dir__()
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__name__}.{name}" in SURFACE:
            return importlib.import_module(f"{self.__name__}.{name}")
        home = SURFACE[self.__name__].get(name)
        if home is None:
            raise _missing(f"{self.__name__}.{name}")
        try:
            module, attribute = self._home(home, name)
            return getattr(module, attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "cyclonedds":
                raise
            raise MissingFeatureError(
                f"{self.__name__}.{name} of the standalone runtime needs the package cyclonedds (pip install "
                "cyclonedds; there are wheels for x86_64 only); elsewhere install a real ROS 2",
                name="cyclonedds",
            ) from error

    # A replacement in rclpy's module, such as a mock, must take effect where the name is used; deleting it restores the
    # previous value, which is how `mock.patch` undoes a replacement.

    def __setattr__(self, name: str, value: Any) -> None:
        home = SURFACE.get(self.__name__, {}).get(name)
        if home is None:
            super().__setattr__(name, value)
            return
        module, attribute = self._home(home, name)
        _replaced.setdefault((self.__name__, name), getattr(module, attribute))
        setattr(module, attribute, value)

    def __delattr__(self, name: str) -> None:
        home = SURFACE.get(self.__name__, {}).get(name)
        if home is None or (self.__name__, name) not in _replaced:
            super().__delattr__(name)
            return
        module, attribute = self._home(home, name)
        setattr(module, attribute, _replaced.pop((self.__name__, name)))

    @staticmethod
    def _home(home: str, name: str) -> tuple[ModuleType, str]:
        module, _, renamed = home.partition(":")  # "module", or "module:name there"
        return importlib.import_module(f"{_ORIGIN}.{module}"), renamed or name

    def __dir__(self) -> list[str]:
        return sorted(SURFACE[self.__name__])


class _InterfaceModule(ModuleType):
    """`package.msg` or `package.srv`: creates each class on first use."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # for `from ... import *`
            return self.__dir__()
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        package, kind = self.__name__.split(".")
        if name not in interfaces.names(package, kind):
            # Request and response classes are also found by name, as pickle requires.
            half, _, suffix = name.rpartition("_")
            if not (kind == "srv" and suffix in ("Request", "Response") and half in interfaces.names(package, kind)):
                raise _missing(f"{self.__name__}.{name}")
            return messages.message_class(f"{package}/{kind}/{name}")
        make_class = messages.service_class if kind == "srv" else messages.message_class
        value = make_class(f"{package}/{kind}/{name}")
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        package, kind = self.__name__.split(".")
        return interfaces.names(package, kind)


class _PackageModule(ModuleType):
    """An interface package; its `msg` and `srv` are submodules."""


class StandaloneFinder(MetaPathFinder, Loader):
    """Finds `rclpy`, its submodules and every interface package in the registry."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for our names, None for others.

        Raises:
            MissingFeatureError: for a missing submodule of `rclpy` or of an interface package.
        """
        root, _, rest = fullname.partition(".")
        if root == "rclpy":
            if fullname not in SURFACE:
                raise _missing(fullname)
            return ModuleSpec(
                fullname, self, origin=_ORIGIN, is_package=any(known.startswith(f"{fullname}.") for known in SURFACE)
            )
        if root not in interfaces.packages():
            return None
        if rest and not (rest in ("msg", "srv") and interfaces.names(root, rest)):
            raise _missing(fullname)
        return ModuleSpec(fullname, self, origin=_ORIGIN, is_package=not rest)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the empty module that resolves its names on first use."""
        if spec.name.split(".")[0] == "rclpy":
            return _SurfaceModule(spec.name)
        return _InterfaceModule(spec.name) if "." in spec.name else _PackageModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names resolve on first use."""


def install() -> None:
    """Make `import rclpy` and `from sensor_msgs.msg import Image` work in a process without ROS 2. Idempotent.

    Raises:
        RuntimeError: if a real rclpy is importable, which must then be used instead.
    """
    with _lock:
        if any(isinstance(finder, StandaloneFinder) for finder in sys.meta_path):
            return
        real = sys.modules.get("rclpy") or importlib.util.find_spec("rclpy")
        if real is not None:
            where = getattr(real, "origin", None) or getattr(real, "__file__", "an unknown location")
            raise RuntimeError(
                f"a real rclpy is importable ({where}): use it; the standalone runtime is for machines without ROS 2"
            )
        sys.meta_path.append(StandaloneFinder())
