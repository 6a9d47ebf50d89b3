"""Callback groups: which callbacks may run concurrently."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from multi_dnn_ros.standalone.missing import Surface


class CallbackGroup(Surface):
    """Base of both kinds of groups; an executor claims the right to run an entity's callback, and releases it."""

    def __init__(self) -> None:
        self._entities: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add_entity(self, entity: Any) -> None:
        """Put an entity into this group."""
        self._entities.add(entity)

    def has_entity(self, entity: Any) -> bool:
        """Return whether an entity is in this group."""
        return entity in self._entities

    def can_execute(self, entity: Any) -> bool:
        """Return whether a callback of the entity may start now."""
        raise NotImplementedError

    def beginning_execution(self, entity: Any) -> bool:
        """Claim the right to run a callback of the entity; return whether it was granted."""
        raise NotImplementedError

    def ending_execution(self, entity: Any) -> None:
        """End the execution of a callback that beginning_execution() allowed."""
        raise NotImplementedError


class ReentrantCallbackGroup(CallbackGroup):
    """Callbacks of this group may run at any time, also concurrently."""

    def can_execute(self, entity: Any) -> bool:
        """Return True."""
        return True

    def beginning_execution(self, entity: Any) -> bool:
        """Return True."""
        return True

    def ending_execution(self, entity: Any) -> None:
        """Do nothing."""


class MutuallyExclusiveCallbackGroup(CallbackGroup):
    """At most one callback of this group runs at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._active: Any = None

    def can_execute(self, entity: Any) -> bool:
        """Return whether no callback of this group is running."""
        return self._active is None

    def beginning_execution(self, entity: Any) -> bool:
        """Claim the group; return whether it was free."""
        with self._lock:
            if self._active is not None:
                return False
            self._active = entity
            return True

    def ending_execution(self, entity: Any) -> None:
        """Release the group."""
        with self._lock:
            if self._active is entity:
                self._active = None
