"""Notices other nodes with the full name of this one: ROS 2 allows it, but neither can then be addressed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: How long others must be seen. A node that was killed, and has been started again, remains in the list of nodes until
#: its lease has expired: 10 s with Cyclone DDS, 20 s with Fast DDS.
CONFIRMED_S = 25.0


class SameNameCheck:
    """Counts the other nodes with the name and namespace of a node, and logs when that number changes.

    node: an rclpy node. warn, info: log a line. clock: seconds.
    """

    def __init__(
        self,
        node: Any,
        warn: Callable[[str], object],
        info: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._warn = warn
        self._info = info
        self._clock = clock
        self._more_since: float | None = None  # since when more others are seen than are counted
        self.others = 0

    def update(self) -> None:
        """Count again; to be called periodically, because discovery takes time and nodes come and go.

        The middleware keeps the list of nodes, so nothing is sent.
        """
        own = self._node.get_name(), self._node.get_namespace()
        found = self._node.get_node_names_and_namespaces()
        others = max(sum(tuple(names) == own for names in found) - 1, 0)
        if others > self.others:
            now = self._clock()
            self._more_since = now if self._more_since is None else self._more_since
            if now - self._more_since < CONFIRMED_S:
                return
        self._more_since = None
        before, self.others = self.others, others
        if others > before:
            self._warn(
                f"{self.text}: the parameters, services and topics of these nodes have the same names, so that any of "
                "them may answer a request, and their results are mixed. Stop all but one, or start the others in a "
                "namespace (--ros-args -r __ns:=/robot2) or with another name (--ros-args -r __node:=multi_dnn_2); "
                "computers that must not see each other need different values of ROS_DOMAIN_ID"
            )
        elif before and not others:
            self._info(f"no other node is named {self._node.get_fully_qualified_name()} any more")

    @property
    def text(self) -> str:
        """`another node is named /multi_dnn, too`; empty if there is none."""
        name = self._node.get_fully_qualified_name()
        if self.others > 1:
            return f"{self.others} other nodes are named {name}, too"
        return f"another node is named {name}, too" if self.others else ""
