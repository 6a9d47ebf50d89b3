"""The states and transitions of a managed node.

Source: the ROS 2 design article "Managed nodes"; identifiers and labels of lifecycle_msgs and rcl_lifecycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from multi_dnn_ros.standalone.errors import RCLError
from multi_dnn_ros.standalone.missing import Surface


class TransitionCallbackReturn(Enum):
    """Result of a transition callback."""

    SUCCESS = 97
    FAILURE = 98
    ERROR = 99

    def to_label(self) -> str:
        """Return the label of the following transition."""
        return f"transition_{self.name.lower()}"


@dataclass(frozen=True)
class LifecycleState(Surface):
    """A state by number and label."""

    state_id: int
    label: str


@dataclass(frozen=True)
class Transition:
    """A transition between two states, by number and label."""

    transition_id: int
    label: str
    start: LifecycleState
    goal: LifecycleState


UNKNOWN: Final = LifecycleState(0, "unknown")
UNCONFIGURED: Final = LifecycleState(1, "unconfigured")
INACTIVE: Final = LifecycleState(2, "inactive")
ACTIVE: Final = LifecycleState(3, "active")
FINALIZED: Final = LifecycleState(4, "finalized")
CONFIGURING: Final = LifecycleState(10, "configuring")
CLEANINGUP: Final = LifecycleState(11, "cleaningup")
SHUTTINGDOWN: Final = LifecycleState(12, "shuttingdown")
ACTIVATING: Final = LifecycleState(13, "activating")
DEACTIVATING: Final = LifecycleState(14, "deactivating")
ERRORPROCESSING: Final = LifecycleState(15, "errorprocessing")

STATES: Final = (
    *(UNKNOWN, UNCONFIGURED, INACTIVE, ACTIVE, FINALIZED),
    *(CONFIGURING, CLEANINGUP, SHUTTINGDOWN, ACTIVATING, DEACTIVATING, ERRORPROCESSING),
)


def _outcomes(
    first_id: int, during: LifecycleState, success: LifecycleState, failure: LifecycleState, error: LifecycleState
) -> tuple[Transition, ...]:
    """Return the three transitions that end a state with a running callback; their numbers are consecutive."""
    goals = (success, failure, error)
    return tuple(
        Transition(first_id + index, outcome.to_label(), during, goal)
        for index, (outcome, goal) in enumerate(zip(TransitionCallbackReturn, goals, strict=True))
    )


TRANSITIONS: Final = (
    Transition(1, "configure", UNCONFIGURED, CONFIGURING),
    *_outcomes(10, CONFIGURING, INACTIVE, UNCONFIGURED, ERRORPROCESSING),
    Transition(2, "cleanup", INACTIVE, CLEANINGUP),
    *_outcomes(20, CLEANINGUP, UNCONFIGURED, INACTIVE, ERRORPROCESSING),
    Transition(3, "activate", INACTIVE, ACTIVATING),
    *_outcomes(30, ACTIVATING, ACTIVE, INACTIVE, ERRORPROCESSING),
    Transition(4, "deactivate", ACTIVE, DEACTIVATING),
    *_outcomes(40, DEACTIVATING, INACTIVE, ACTIVE, ERRORPROCESSING),
    Transition(5, "shutdown", UNCONFIGURED, SHUTTINGDOWN),
    Transition(6, "shutdown", INACTIVE, SHUTTINGDOWN),
    Transition(7, "shutdown", ACTIVE, SHUTTINGDOWN),
    *_outcomes(50, SHUTTINGDOWN, FINALIZED, FINALIZED, ERRORPROCESSING),
    *_outcomes(60, ERRORPROCESSING, UNCONFIGURED, FINALIZED, FINALIZED),
)


class StateMachine:
    """The current state and its allowed transitions."""

    def __init__(self) -> None:
        self.state = UNCONFIGURED

    def available(self) -> list[Transition]:
        """Return the transitions from the current state."""
        return [transition for transition in TRANSITIONS if transition.start == self.state]

    def find(self, key: int | str) -> Transition | None:
        """Return the available transition with a number or label, or None."""
        for transition in self.available():
            if key in (transition.transition_id, transition.label):
                return transition
        return None

    def trigger(self, key: int | str) -> Transition:
        """Make a transition, by number or label, and return it.

        Raises:
            RCLError: if the current state does not allow it; names the state and the allowed transitions.
        """
        transition = self.find(key)
        if transition is None:
            allowed = ", ".join(f"{entry.transition_id} ({entry.label})" for entry in self.available()) or "none"
            raise RCLError(f"transition {key!r} is not allowed in state {self.state.label!r}; allowed: {allowed}")
        self.state = transition.goal
        return transition
