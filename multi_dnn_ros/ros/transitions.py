"""A node's transitions in a thread of their own, so that its executor serves the node meanwhile.

rclpy runs a transition inside the callback of the service ``change_state``, where an executor with one thread can do
nothing else until it ends. Here that callback is a coroutine: it starts the thread and waits for it, which leaves the
executor free. An executor with several threads would do as well, but costs CPU time for every message.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from lifecycle_msgs.msg import State, Transition, TransitionDescription
from lifecycle_msgs.srv import ChangeState
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
from rclpy.task import Future

T = TypeVar("T")
#: One transition, as of LifecycleNode.trigger_configure.
Step = Callable[[], TransitionCallbackReturn]

_SUCCESS = TransitionCallbackReturn.SUCCESS
_CLEANUP = "cleanup"
_SHUTDOWN = "shutdown"
#: What a client may ask for while another transition is under way, by label or number.
_ENDING: dict[Any, str] = {
    "cleanup": _CLEANUP,
    Transition.TRANSITION_CLEANUP: _CLEANUP,
    "shutdown": _SHUTDOWN,
    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: _SHUTDOWN,
    Transition.TRANSITION_INACTIVE_SHUTDOWN: _SHUTDOWN,
    Transition.TRANSITION_ACTIVE_SHUTDOWN: _SHUTDOWN,
}
#: How often what is under way is looked after, and cancelled again.
_TURN_S = 0.05


class _AbandonedError(BaseException):
    """Ends the thread of a transition that was given up; no callback of the node's catches it."""


class Transitions:
    """Runs a node's transitions one at a time. All methods but :meth:`in_executor` are for the executor's thread.

    ``cleanup`` and ``shutdown`` that are asked for while a transition is under way cancel it and run after it; any
    other transition is refused then. cancel: makes a long transition fail soon. configured: whether the node is.
    """

    def __init__(self, node: LifecycleNode, cancel: Callable[[], None], configured: Callable[[], bool]) -> None:
        self._node = node
        self._cancel = cancel
        self._configured = configured
        self._thread: threading.Thread | None = None
        self._ended = Future()  # result: whether all steps succeeded
        self._cancelled = False
        self._cancel_timer: Any = None
        self._abandoned = False
        self._unanswered = 0
        self._original: Callable[[Any, Any], Any]
        self._original_available: Callable[[Any, Any], Any]
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Reentrant: the life cycle's services answer while a transition is under way.
        self._group = group = ReentrantCallbackGroup()
        self._called = node.create_guard_condition(self._run_calls, callback_group=group)
        for service in node.services:
            if service.srv_name.endswith("/change_state") and service.srv_type is ChangeState:
                self._original = service.callback
                service.callback = self._change_state
            elif service.srv_name.endswith("/get_available_transitions"):
                self._original_available = service.callback
                service.callback = self._available
            elif not service.srv_name.endswith(("/get_state", "/get_available_states", "/get_transition_graph")):
                continue
            service.callback_group = group
            group.add_entity(service)

    @property
    def under_way(self) -> bool:
        """Whether a transition runs."""
        return self._thread is not None

    @property
    def unanswered(self) -> int:
        """Clients of ``change_state`` that wait for an answer."""
        return self._unanswered

    @property
    def hangs(self) -> bool:
        """Whether a transition that was given up still runs."""
        return self._abandoned and self._thread is not None and self._thread.is_alive()

    def begin(self, *steps: Step) -> bool:
        """Start transitions that follow each other; the first one that fails is the last. False: one is under way."""
        if self._thread is not None:
            return False
        self._cancelled = False
        self._ended = Future()
        self._thread = threading.Thread(target=self._run, args=(steps,), name="transition", daemon=True)
        self._thread.start()
        return True

    def cancel(self) -> None:
        """Let what is under way fail soon, and begin no further step of it."""
        if self._thread is None:
            return
        self._cancelled = True
        self._cancel()
        if self._cancel_timer is None:  # again and again: it may be about to begin what can be cancelled
            clock = Clock(clock_type=ClockType.STEADY_TIME)
            self._cancel_timer = self._node.create_timer(_TURN_S, self._cancel, self._group, clock)

    def end(self, timeout_s: float) -> bool:
        """Cancel what is under way and wait for it, whether or not the executor spins; False when it takes longer."""
        self.cancel()
        end = time.monotonic() + timeout_s
        while self._thread is not None and (left_s := end - time.monotonic()) > 0:
            try:
                call = self._calls.get(timeout=min(left_s, _TURN_S))
            except queue.Empty:
                self.cancel()
                continue
            call()
        return self._thread is None

    def abandon(self) -> None:
        """Give up what is under way: nothing of it is run in the executor's thread any more."""
        self._abandoned = self._thread is not None

    def in_executor(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call in the executor's thread, which creates and destroys what it waits on; what it returns or raises.

        Calls directly where no transition is under way in the calling thread.
        """
        if threading.current_thread() is not self._thread:
            return function(*arguments)
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                results.append(function(*arguments))
            except BaseException as error:
                errors.append(error)
            done.set()

        self._call(call)
        while not done.wait(_TURN_S):
            self._leave_if_abandoned()
        if errors:
            raise errors[0]
        return results[0]

    # -- in the thread of the transition

    def _run(self, steps: tuple[Step, ...]) -> None:
        with contextlib.suppress(_AbandonedError):
            self._run_steps(steps)

    def _run_steps(self, steps: tuple[Step, ...]) -> None:
        succeeded, error = True, ""
        try:
            for step in steps:
                if not succeeded:
                    break
                if self._cancelled:
                    succeeded = False
                    break
                succeeded = step() is _SUCCESS
        except Exception as raised:  # rclpy: not allowed in the present state
            succeeded, error = False, str(raised)
        self._call(lambda: self._finish(succeeded, error))

    def _call(self, call: Callable[[], None]) -> None:
        self._leave_if_abandoned()
        self._calls.put(call)
        self._called.trigger()

    def _leave_if_abandoned(self) -> None:
        if self._abandoned:
            raise _AbandonedError  # the node may be destroyed already

    # -- in the thread of the executor

    def _run_calls(self) -> None:
        while not self._calls.empty():
            self._calls.get()()

    def _finish(self, succeeded: bool, error: str) -> None:
        assert self._thread is not None
        self._thread.join()  # it has nothing left to do
        self._thread = None
        if self._cancel_timer is not None:
            self._node.destroy_timer(self._cancel_timer)
            self._cancel_timer = None
        if error:
            self._node.get_logger().error(f"transition refused: {error}")
        self._ended.set_result(succeeded)

    async def _change_state(self, request: Any, response: Any) -> Any:
        self._unanswered += 1
        try:
            response.success = await self._answer(request, response)
        finally:
            self._unanswered -= 1
        return response

    async def _answer(self, request: Any, response: Any) -> bool:
        wanted = request.transition.label or request.transition.id
        ending = _ENDING.get(wanted)
        if self._thread is None:
            return await self._outcome_of(lambda: self._as_asked(request, response))
        if ending is None:
            self._node.get_logger().warning(
                f"change_state: transition {wanted} refused while another one is under way; allowed: cleanup, shutdown"
            )
            return False
        self._node.get_logger().info(f"{ending}: cancels the transition that is under way")
        while self._thread is not None:
            self.cancel()
            await self._ended
        if ending == _SHUTDOWN:
            return await self._outcome_of(self._node.trigger_shutdown)
        if not self._configured():  # configuring was cancelled: there is nothing to clean up
            return True
        return await self._outcome_of(self._node.trigger_cleanup)

    def _as_asked(self, request: Any, response: Any) -> TransitionCallbackReturn:
        done = self._original(request, response).success
        return _SUCCESS if done else TransitionCallbackReturn.FAILURE

    async def _outcome_of(self, step: Step) -> bool:
        self.begin(step)
        return bool(await self._ended)

    def _available(self, request: Any, response: Any) -> Any:
        """While a transition is under way also what ends it: `ros2 lifecycle set` asks for nothing that is not here."""
        response = self._original_available(request, response)
        if self._thread is not None:
            response.available_transitions = [
                *response.available_transitions,
                _description(Transition.TRANSITION_CLEANUP, _CLEANUP, State.PRIMARY_STATE_UNCONFIGURED, "unconfigured"),
                _description(
                    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN, _SHUTDOWN, State.PRIMARY_STATE_FINALIZED, "finalized"
                ),
            ]
        return response


def _description(number: int, label: str, goal: int, goal_label: str) -> Any:
    return TransitionDescription(
        transition=Transition(id=number, label=label),
        start_state=State(id=State.TRANSITION_STATE_CONFIGURING, label="configuring"),
        goal_state=State(id=goal, label=goal_label),
    )
