"""Reserved ROS domains are unused, and reserved by one process at a time."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.processes import reserved_domain


def test_a_domain_is_reserved_once_at_a_time() -> None:
    with ExitStack() as stack:
        mine = [stack.enter_context(reserved_domain()) for _ in range(20)]
        assert len(set(mine)) == 20
        program = (
            "from contextlib import ExitStack\n"
            "from multi_dnn_ros.common.processes import reserved_domain\n"
            "s = ExitStack()\n"
            "print(*[s.enter_context(reserved_domain()) for _ in range(20)])"
        )
        theirs = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        assert len(set(map(int, theirs.split()))) == 20
        assert not set(mine) & set(map(int, theirs.split()))
    seen = set()
    for _ in range(200):  # all of them are free again, one after another
        with reserved_domain() as domain:
            seen.add(domain)
    assert seen > set(mine)


def test_domains_in_use_are_skipped_and_an_error_says_when_none_is_free() -> None:
    with ExitStack() as stack:
        with reserved_domain() as domain:
            pass
        other = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        other.bind(("0.0.0.0", 7400 + 250 * domain + 10))  # as a participant of another ROS 2 does
        mine = []
        with pytest.raises(CommandError, match=r"every ROS domain from 20 to 99 is in use"):
            mine.extend(stack.enter_context(reserved_domain()) for _ in range(81))
        assert domain not in mine
