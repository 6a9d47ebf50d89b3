"""Imports the extensions of other packages, and names those that take long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from multi_dnn_ros.common.extensions import OWN, ExtensionError, Registry, display_name, distribution

log = logging.getLogger(__name__)

#: Longest time for importing an extension without a line in the log.
LIMIT_S = 2.0


def import_extensions(
    registries: Mapping[str, Registry[Any]],
    waiting: str,
    report: Callable[[str], object] = log.warning,
    clock: Callable[[], float] = time.monotonic,
    checked: Callable[[str], AbstractContextManager[object]] = lambda extension: nullcontext(),
) -> None:
    """Import every specification of other packages that was not imported yet.

    registries: by group. waiting: what waits for the imports, for the message, such as "every start of an engine
    process". report: called with a line for each that takes longer than LIMIT_S; it names the distribution. checked:
    returns a context for the import of an extension, from its name for messages. Those that cannot be imported are left
    to :meth:`Registry.report_broken`.
    """
    for group, registry in registries.items():
        for name in registry.names():
            if name in OWN[group]:
                continue
            begin_s = clock()
            with suppress(ExtensionError), checked(display_name(group, name)):
                registry.get(name)
            elapsed_s = clock() - begin_s
            if elapsed_s > LIMIT_S:
                report(
                    f"importing '{name}' of {distribution(group, name)} (entry points {group}) took "
                    f"{elapsed_s:.1f} s: {waiting} waits for it"
                )
