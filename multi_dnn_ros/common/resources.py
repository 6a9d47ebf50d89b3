"""Paths of installed configuration files and of the user's cache."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from multi_dnn_ros.common.environment import is_writable, temporary_folder

log = logging.getLogger(__name__)

_PACKAGE = "multi_dnn_ros"


def config_file(name: str) -> Path:
    """Path of a file in the package's ``config`` folder, such as ``multi_dnn.yaml``.

    Searches the source checkout first (so that edits of its YAML take effect), then colcon's installation (the ament
    index), then pip's (``<prefix>/share/multi_dnn_ros/config``).

    Raises FileNotFoundError that names the file and the searched folders.
    """
    if Path(name).name != name:
        raise ValueError(f"config file {name!r}: expected a plain file name without folders")
    searched = list(_config_folders())
    for folder in searched:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"config file {name!r} is not installed; searched {', '.join(str(folder) for folder in searched)}"
    )


def cache_folder() -> Path:
    """Folder for files that can be rebuilt: $XDG_CACHE_HOME/multi_dnn_ros, by default below ~/.cache."""
    return writable_folder(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _PACKAGE)


def writable_folder(folder: Path) -> Path:
    """`folder`, which need not exist; if it cannot be written, one of the same name in a folder of this user in the
    temporary folder.
    """
    if is_writable(folder):
        return folder
    replacement = temporary_folder() / folder.name
    _warn_once(folder, replacement)
    return replacement


@functools.cache
def _warn_once(folder: Path, replacement: Path) -> None:
    log.warning("%s cannot be written, so caches are kept in %s; set XDG_CACHE_HOME to change it", folder, replacement)


def _config_folders() -> Iterator[Path]:
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "package.xml").is_file():  # otherwise site-packages, whose `config` belongs to another package
        yield checkout / "config"
    try:
        from ament_index_python.packages import PackageNotFoundError, get_package_share_directory
    except ModuleNotFoundError:
        pass
    else:
        with contextlib.suppress(PackageNotFoundError):
            yield Path(get_package_share_directory(_PACKAGE)) / "config"
    # sysconfig's data path also covers --user installs and Debian's /usr/local scheme, where sys.prefix is /usr.
    for prefix in dict.fromkeys((sysconfig.get_path("data"), sys.prefix)):
        yield Path(prefix) / "share" / _PACKAGE / "config"
