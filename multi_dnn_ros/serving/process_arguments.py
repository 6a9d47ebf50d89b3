"""What an engine process is started with, and the codes that it exits with."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass

from multi_dnn_ros.serving.slots import SlotLayout

#: Exit codes of an engine process that ends itself; see also multi_dnn_ros.common.parent_process.
EXIT_ERROR = 70  # an error in its own code
EXIT_DEVICE_FAILED = 71  # a fault of the GPU


@dataclass(frozen=True)
class Pool:
    """The slots of one camera. fd: file descriptor of their memory."""

    layout: SlotLayout
    fd: int


@dataclass(frozen=True)
class ProcessArguments:
    """label: for messages and process lists. dnns: columns of the shared status.

    channel, status: file descriptors. modules: what the process imports before it is ready. log_level: minimum level
    of the log records that it sends, as in :mod:`logging`.
    """

    label: str
    dnns: tuple[str, ...]
    channel: int
    status: int
    pools: tuple[Pool, ...]
    modules: tuple[str, ...] = ()
    log_level: int = logging.WARNING

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ProcessArguments:
        content = json.loads(text)
        pools = content.pop("pools")
        content["dnns"], content["modules"] = tuple(content["dnns"]), tuple(content["modules"])
        return cls(
            **content,
            pools=tuple(
                Pool(SlotLayout(**{**pool["layout"], "outputs": tuple(pool["layout"]["outputs"])}), pool["fd"])
                for pool in pools
            ),
        )
