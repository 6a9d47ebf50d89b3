"""The part of a model swap that concerns one device: its settings, its processes and their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from multi_dnn_ros.serving.action_executor import ActionExecutor
from multi_dnn_ros.serving.host import Changes, EngineDescription, Progress
from multi_dnn_ros.serving.supervision.actions import Action
from multi_dnn_ros.serving.supervision.supervisor import Supervisor
from multi_dnn_ros.settings.dnn_parameters import assign
from multi_dnn_ros.settings.schema import NodeConfig


class DeviceSwap:
    """Prepares processes with changed settings, and commits or cancels them; see
    :class:`multi_dnn_ros.serving.supervision.swapping.Swapping`. Not thread-safe.

    execute: executes actions of the supervisor.
    number: number of the latest swap. descriptions: descriptions of the prepared processes. progress: progress of the
    preparation.
    """

    def __init__(
        self, supervisor: Supervisor, executor: ActionExecutor, execute: Callable[[Iterable[Action]], None]
    ) -> None:
        self._supervisor = supervisor
        self._executor = executor
        self._execute = execute
        self._notify: Callable[[], None] = _do_nothing
        self._notified = self._outcome()  # the outcome at the last call of `notify`
        self.number = 0
        self.descriptions: list[EngineDescription] = []
        self.progress: Progress | None = None

    @property
    def dnns(self) -> tuple[str, ...]:
        """The DNNs of the device."""
        return tuple(self._executor.config.dnns)

    @property
    def is_prepared(self) -> bool:
        """Whether :meth:`commit` is possible now."""
        return self._supervisor.swapping.is_prepared

    @property
    def failure(self) -> str:
        """Why the swap has failed; empty: it has not."""
        return self._supervisor.swapping.failure

    def begin(self, changes: Changes, notify: Callable[[], None], on_gap: Callable[[str, float], None]) -> int:
        """Prepare processes; returns the number of the swap. A swap that is under way is cancelled.

        notify: called with the lock of the device held when `is_prepared` or `failure` has changed, until the swap is
        committed or cancelled. on_gap: see ActionExecutor.
        """
        executor = self._executor
        self.number += 1
        self.descriptions, self.progress = [], None
        self._notify, self._notified = notify, (False, "")
        executor.on_gap = on_gap
        executor.swap_config = _copy_with(_copy_with(executor.config, executor.runtime), changes)
        self._execute(self._supervisor.begin_swap([dnn for dnn in changes if dnn in self.dnns]))
        return self.number

    def commit(self) -> None:
        """The prepared processes serve from now on; `is_prepared` must hold."""
        executor = self._executor
        assert executor.swap_config is not None
        executor.adopt(executor.swap_config)
        executor.swap_config = None
        self._notify = _do_nothing
        self._execute(self._supervisor.commit_swap())

    def cancel(self, cause: str) -> None:
        """End the processes that are being prepared; no effect without a swap."""
        self._notify = _do_nothing
        self._executor.swap_config = None
        self._execute(self._supervisor.cancel_swap(cause))

    # -- events

    def progressed(self, key: int, progress: Progress) -> None:
        """A process has made progress in configuring."""
        if key in self._supervisor.swapping.keys:
            self.progress = progress

    def configured(self, key: int, description: EngineDescription) -> None:
        """A process is configured."""
        if key in self._supervisor.swapping.keys:
            self.descriptions.append(description)

    def check(self) -> None:
        """Call `notify` if there is something new; to be called after every event of the processes."""
        outcome = self._outcome()
        if outcome != self._notified:
            self._notified = outcome
            self._notify()

    def _outcome(self) -> tuple[bool, str]:
        """The state whose changes `notify` reports."""
        return self.is_prepared, self.failure


def _copy_with(config: NodeConfig, changes: Changes) -> NodeConfig:
    """A copy of the settings with these values; values of DNNs that it does not have are ignored."""
    changed = config.model_copy(deep=True)
    for dnn, values in changes.items():
        if dnn in changed.dnns:
            for name, value in values.items():
                assign(changed.dnns[dnn], name, value)
    return changed


def _do_nothing() -> None:
    pass
