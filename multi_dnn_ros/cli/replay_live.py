"""``multi-dnn replay --live``: run every frame of a recording through a running node."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common.errors import CommandError

if TYPE_CHECKING:
    from multi_dnn_ros.bags import BagReader
    from multi_dnn_ros.replay.remote_node import RemoteNode
    from multi_dnn_ros.replay.spinning import SpinningNode
    from multi_dnn_ros.replay.summary import Summary

#: Time limits for the node to load its DNNs, to connect, and to deactivate or clean up.
_CONFIGURE_S, _CONNECT_S, _STOP_S = 3600.0, 60.0, 60.0


def run_live(args: argparse.Namespace) -> int:
    """Configure the node, replay, and restore the node. Returns 1 unless every frame has all its results."""
    from multi_dnn_ros.bags import BagReader
    from multi_dnn_ros.replay.live_results import LiveReplayError
    from multi_dnn_ros.replay.remote_node import RemoteNodeError
    from multi_dnn_ros.replay.spinning import spinning
    from multi_dnn_ros.ros.middleware import configure

    summary: Summary | None = None
    frames = 0
    try:
        with ExitStack() as stack:
            bag = stack.enter_context(BagReader(args.in_bag))
            configure()
            spinner = stack.enter_context(spinning("multi_dnn_replay", args.ros_args))
            name = args.node or f"{spinner.node.get_namespace().rstrip('/')}/multi_dnn"
            frames, summary = _replay(args, bag, spinner, name)
    except (RemoteNodeError, LiveReplayError) as error:
        raise CommandError(str(error)) from error
    print(summary)
    for text in (*bag.notes, *summary.input_damage):
        print(f"warning: {args.in_bag}: {text}", file=sys.stderr)
    if summary.stopped:
        print(f"error: replay ended early: {summary.stopped}", file=sys.stderr)
    print(f"written to {args.out_bag}")
    print(f"{summary.complete} of {frames} frames", flush=True)
    return 0 if summary.complete == frames and not summary.input_damage else 1


def _replay(args: argparse.Namespace, bag: BagReader, spinner: SpinningNode, name: str) -> tuple[int, Summary]:
    """The number of frames in the recording, and the summary of their results."""
    from lifecycle_msgs.msg import Transition
    from tqdm import tqdm

    from multi_dnn_ros.bags import BagWriter
    from multi_dnn_ros.replay.live import LiveReplay
    from multi_dnn_ros.replay.live_setup import lossless_parameters, plan_replay
    from multi_dnn_ros.replay.remote_node import RemoteNode

    node = spinner.node
    remote = RemoteNode(node, name, args.start_timeout, failure=lambda: spinner.failure)
    state = remote.state()
    if state != "unconfigured":
        raise CommandError(f"node {name} is {state}; expected unconfigured: start it with -p autostart:=false")
    plan = plan_replay(node, remote, bag, dict(args.topic))
    expected = sum(bag.topics[camera.recorded].count for camera in plan.cameras)
    if not expected:
        topics = ", ".join(camera.recorded for camera in plan.cameras)
        raise CommandError(f"bag {args.in_bag} holds no message on {topics}; choose with --topic")
    for camera in plan.cameras:
        print(f"{camera.recorded} is published on {camera.topic} for {', '.join(camera.dnns)}", file=sys.stderr)
    replay = LiveReplay(node, remote, plan, rate=args.rate)
    with BagWriter(args.out_bag, args.storage) as writer, _parameters(remote, lossless_parameters(plan)):
        print(f"{name}: loading the DNNs", file=sys.stderr)
        remote.change_state(Transition.TRANSITION_CONFIGURE, _CONFIGURE_S)
        with _at_end(remote, lambda: remote.change_state(Transition.TRANSITION_CLEANUP, _STOP_S)):
            replay.before_activation()
            remote.change_state(Transition.TRANSITION_ACTIVATE, _STOP_S)
            with _at_end(remote, lambda: remote.change_state(Transition.TRANSITION_DEACTIVATE, _STOP_S)):
                replay.wait_connected(_CONNECT_S)
                with tqdm(total=expected, unit="frame", desc="replay", disable=None) as bar:
                    summary = replay.run(bag, writer, with_input=args.with_input, progress=bar.update)
        frames = max(expected, summary.frames)
        figures = {"frames": frames, "complete": summary.complete, "stopped": summary.stopped, **summary.as_json()}
        writer.add_file("summary.json", json.dumps(figures, indent=2) + "\n")
    return frames, summary


@contextmanager
def _at_end(remote: RemoteNode, undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` at the end, if the node is still up. A request that it refuses is a warning."""
    from multi_dnn_ros.replay.remote_node import RemoteNodeError

    try:
        yield
    finally:
        try:
            if remote.is_up():
                undo()
        except RemoteNodeError as error:
            print(f"warning: {error}", file=sys.stderr)


@contextmanager
def _parameters(remote: RemoteNode, values: dict[str, Any]) -> Iterator[None]:
    """Set parameters, and restore the former values at the end."""
    before = remote.parameters(list(values))
    remote.set_parameters(values)
    with _at_end(remote, lambda: remote.set_parameters(before)):
        yield
