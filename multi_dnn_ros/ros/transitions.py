"""Runs the life cycle transitions of a node in a thread of their own, so that the node stays responsive.

rclpy runs a transition inside the callback of the service ``change_state``, which blocks a single-threaded executor
until the transition ends. Here the callback is a coroutine that starts a thread and awaits its end, so the executor can
run other callbacks. A multi-threaded executor would also work, but costs CPU time for every message.
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
#: One transition, for example LifecycleNode.trigger_configure.
Step = Callable[[], TransitionCallbackReturn]

_SUCCESS = TransitionCallbackReturn.SUCCESS
_CLEANUP = "cleanup"
_SHUTDOWN = "shutdown"
#: Transitions that a client may request while another one is in progress, by label and by number.
_CANCELLING: dict[Any, str] = {
    "cleanup": _CLEANUP,
    Transition.TRANSITION_CLEANUP: _CLEANUP,
    "shutdown": _SHUTDOWN,
    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: _SHUTDOWN,
    Transition.TRANSITION_INACTIVE_SHUTDOWN: _SHUTDOWN,
    Transition.TRANSITION_ACTIVE_SHUTDOWN: _SHUTDOWN,
}
#: Period of checking and cancelling the transition in progress.
_POLL_S = 0.05


class _AbandonedError(BaseException):
    """Ends the thread of an abandoned transition. A BaseException, so that no callback of the node catches it."""


class Transitions:
    """Runs the transitions of a node one at a time. Only :meth:`in_executor` may be called in other threads than the
    executor's.

    ``cleanup`` and ``shutdown`` requested during a transition cancel it and run afterwards; any other request during a
    transition is rejected. cancel: makes a long transition fail soon. configured: whether the node is configured.
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
        self._pending_responses = 0
        self._original: Callable[[Any, Any], Any]
        self._original_available: Callable[[Any, Any], Any]
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Reentrant: the life cycle services must respond during a transition.
        self._group = group = ReentrantCallbackGroup()
        self._called = node.create_guard_condition(self._run_calls, callback_group=group)
        for service in node.services:
            if service.srv_name.endswith("/change_state") and service.srv_type is ChangeState:
                self._original = service.callback
                service.callback = self._change_state
            elif service.srv_name.endswith("/get_available_transitions"):
                self._original_available = service.callback
                service.callback = self._available_transitions
            elif not service.srv_name.endswith(("/get_state", "/get_available_states", "/get_transition_graph")):
                continue
            service.callback_group = group
            group.add_entity(service)

    @property
    def pending_responses(self) -> int:
        """Number of ``change_state`` requests without a response yet."""
        return self._pending_responses

    @property
    def hangs(self) -> bool:
        """Whether an abandoned transition still runs."""
        return self._abandoned and self._thread is not None and self._thread.is_alive()

    def begin(self, *steps: Step) -> bool:
        """Start consecutive transitions, up to the first that fails. False: another transition is in progress."""
        if self._thread is not None:
            return False
        self._cancelled = False
        self._ended = Future()
        self._thread = threading.Thread(target=self._run, args=(steps,), name="transition", daemon=True)
        self._thread.start()
        return True

    def cancel(self) -> None:
        """Make the transition in progress fail soon, and start none of the following ones."""
        if self._thread is None:
            return
        self._cancelled = True
        self._cancel()
        if self._cancel_timer is None:  # repeatedly, because a cancellable step may only be about to start
            clock = Clock(clock_type=ClockType.STEADY_TIME)
            self._cancel_timer = self._node.create_timer(_POLL_S, self._cancel, self._group, clock)

    def end(self, timeout_s: float) -> bool:
        """Cancel the transition in progress and wait for it, even if the executor does not spin; False on timeout."""
        self.cancel()
        end = time.monotonic() + timeout_s
        while self._thread is not None and (left_s := end - time.monotonic()) > 0:
            try:
                call = self._calls.get(timeout=min(left_s, _POLL_S))
            except queue.Empty:
                self.cancel()
                continue
            call()
        return self._thread is None

    def abandon(self) -> None:
        """Stop waiting for the transition in progress; it can no longer call anything in the executor's thread."""
        self._abandoned = self._thread is not None

    def in_executor(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` in the executor's thread and return or raise its outcome.

        Entities that the executor waits on must be created and destroyed in its thread. Outside the thread of a
        transition, calls `function` directly.
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
        while not done.wait(_POLL_S):
            self._leave_if_abandoned()
        if errors:
            raise errors[0]
        return results[0]

    # -- called in the thread of the transition

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
        except Exception as raised:  # by rclpy if the transition is not allowed in the present state
            succeeded, error = False, str(raised)
        self._call(lambda: self._finish(succeeded, error))

    def _call(self, call: Callable[[], None]) -> None:
        self._leave_if_abandoned()
        self._calls.put(call)
        self._called.trigger()

    def _leave_if_abandoned(self) -> None:
        if self._abandoned:
            raise _AbandonedError  # the node may already be destroyed

    # -- called in the thread of the executor

    def _run_calls(self) -> None:
        while not self._calls.empty():
            self._calls.get()()

    def _finish(self, succeeded: bool, error: str) -> None:
        assert self._thread is not None
        self._thread.join()  # it is about to end
        self._thread = None
        if self._cancel_timer is not None:
            self._node.destroy_timer(self._cancel_timer)
            self._cancel_timer = None
        if error:
            self._node.get_logger().error(f"transition rejected: {error}")
        self._ended.set_result(succeeded)

    async def _change_state(self, request: Any, response: Any) -> Any:
        self._pending_responses += 1
        try:
            response.success = await self._respond(request, response)
        finally:
            self._pending_responses -= 1
        return response

    async def _respond(self, request: Any, response: Any) -> bool:
        requested = request.transition.label or request.transition.id
        cancelling = _CANCELLING.get(requested)
        if self._thread is None:
            return await self._outcome_of(lambda: self._run_original(request, response))
        if cancelling is None:
            self._node.get_logger().warning(
                f"change_state: transition {requested} rejected, because another transition is in progress; allowed "
                "now: cleanup, shutdown"
            )
            return False
        self._node.get_logger().info(f"{cancelling}: cancelling the transition in progress")
        while self._thread is not None:
            self.cancel()
            await self._ended
        if cancelling == _SHUTDOWN:
            return await self._outcome_of(self._node.trigger_shutdown)
        if not self._configured():  # configuring was cancelled, so there is nothing to clean up
            return True
        return await self._outcome_of(self._node.trigger_cleanup)

    def _run_original(self, request: Any, response: Any) -> TransitionCallbackReturn:
        done = self._original(request, response).success
        return _SUCCESS if done else TransitionCallbackReturn.FAILURE

    async def _outcome_of(self, step: Step) -> bool:
        self.begin(step)
        return bool(await self._ended)

    def _available_transitions(self, request: Any, response: Any) -> Any:
        """Adds the transitions that cancel the one in progress; `ros2 lifecycle set` requests only listed ones."""
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
