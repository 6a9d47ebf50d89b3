"""Where the package's files are: what is installed with it, and what it keeps for the user."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = "multi_dnn_ros"


def config_file(name: str) -> Path:
    """Path of a file of the package's ``config`` folder, such as ``multi_dnn.yaml``.

    Looks in the source checkout first (an edit of its YAML is then what runs), then where colcon installs it (the ament
    index), then where pip installs it (``<prefix>/share/multi_dnn_ros/config``).

    Raises FileNotFoundError, which names the file and the folders that were searched.
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
    """Where the package keeps what it can make again: $XDG_CACHE_HOME/multi_dnn_ros, ~/.cache without that."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _PACKAGE


def _config_folders() -> Iterator[Path]:
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "package.xml").is_file():  # else this is site-packages, whose `config` would be somebody else's
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
