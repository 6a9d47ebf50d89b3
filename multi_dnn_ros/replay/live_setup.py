"""Prepares a running node for a live replay: recorded topics of the cameras, and lossless parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node

from multi_dnn_ros.bags import BagReader
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.replay.expected_kind import expected_kind
from multi_dnn_ros.replay.recorded_cameras import default_topic, recorded_topics
from multi_dnn_ros.replay.remote_node import RemoteNode, RemoteNodeError
from multi_dnn_ros.settings.parameter_fields import OUTPUTS
from multi_dnn_ros.settings.schema import CameraConfig
from multi_dnn_ros.vision.result_kind import ResultKind
from multi_dnn_ros.vision.results import result_name

#: Depth of the node's camera subscription: one frame is in progress at a time, the rest is a reserve.
_DEPTH = 10


@dataclass(frozen=True)
class LiveCamera:
    """One camera of the node. topic: the node subscribes to it. recorded: the topic in the recording."""

    name: str
    topic: str
    recorded: str
    msgtype: str
    dnns: tuple[str, ...]


@dataclass(frozen=True)
class LivePlan:
    """What is replayed. cameras: those that a DNN serves. kinds: the kind of every result, by its name, in the order of
    the node's parameters.
    """

    cameras: tuple[LiveCamera, ...]
    kinds: Mapping[str, ResultKind]

    @property
    def dnns(self) -> tuple[str, ...]:
        """Names of the DNNs."""
        return tuple(dict.fromkeys(name.partition("/")[0] for name in self.kinds))

    def topics(self, dnn: str) -> dict[str, str]:
        """The topics of a DNN's results below ``~/<camera>/``, and their message types."""
        return {
            f"{name}/{topic}": msgtype
            for name, kind in self.kinds.items()
            if name.partition("/")[0] == dnn
            for topic, msgtype in kind.msgtypes.items()
        }


def plan_replay(node: Node, remote: RemoteNode, bag: BagReader, chosen: Mapping[str, str]) -> LivePlan:
    """Read cameras and DNNs from the node's parameters, and find each camera's topic in the recording.

    node: resolves topic names, so it must have the remote node's namespace and remappings. chosen: see recorded_topics.
    Raises RemoteNodeError and BagError.
    """
    lists = remote.parameters(["cameras", "dnns"])
    cameras, dnns = (tuple(lists[name] or ()) for name in ("cameras", "dnns"))
    values = remote.parameters(
        [f"camera.{camera}.{field}" for camera in cameras for field in ("topic", "transport")]
        + [f"dnn.{dnn}.{field}" for dnn in dnns for field in ("role", "decoder", "cameras", OUTPUTS)]
    )
    outputs = {dnn: tuple(values[f"dnn.{dnn}.{OUTPUTS}"] or ()) for dnn in dnns}
    decoders = [f"dnn.{dnn}.output.{output}.decoder" for dnn in dnns for output in outputs[dnn]]
    if decoders:
        values = {**values, **remote.parameters(decoders)}
    kinds: dict[str, ResultKind] = {}
    for dnn in dnns:
        for output in outputs[dnn]:
            prefix = f"dnn.{dnn}.output.{output}"
            kinds[result_name(dnn, output)] = _kind("", values[f"{prefix}.decoder"], prefix, remote)
        if not outputs[dnn]:
            kinds[dnn] = _kind(values[f"dnn.{dnn}.role"], values[f"dnn.{dnn}.decoder"], f"dnn.{dnn}", remote)
    served = {
        camera: tuple(dnn for dnn in dnns if camera in (values[f"dnn.{dnn}.cameras"] or cameras)) for camera in cameras
    }
    settings = {
        camera: CameraConfig(topic=values[f"camera.{camera}.topic"], transport=values[f"camera.{camera}.transport"])
        for camera in cameras
        if served[camera]
    }
    found = recorded_topics(bag, settings, chosen, node.resolve_topic_name)
    return LivePlan(
        tuple(
            LiveCamera(
                camera,
                node.resolve_topic_name(
                    settings[camera].topic or default_topic(camera, _transport(bag.topics[topic].msgtype))
                ),
                topic,
                bag.topics[topic].msgtype,
                served[camera],
            )
            for camera, topic in found.items()
        ),
        kinds,
    )


def _kind(role: Any, decoder: Any, where: str, remote: RemoteNode) -> ResultKind:
    """The kind of a result. Raises RemoteNodeError, which names the parameters, if they do not determine it.

    role: empty for one of several results. where: prefix of the result's parameters.
    """
    try:
        return expected_kind(str(role), str(decoder))
    except ExtensionError as error:
        names = f"parameters {where}.role and .decoder" if role else f"parameter {where}.decoder"
        raise RemoteNodeError(f"{names} of {remote.name}: {error}") from None


def lossless_parameters(plan: LivePlan) -> dict[str, Any]:
    """Parameters with which the node drops no frame if frames are sent one at a time."""
    values: dict[str, Any] = {}
    for camera in plan.cameras:
        values[f"camera.{camera.name}.transport"] = _transport(camera.msgtype)
        values[f"camera.{camera.name}.qos"] = "reliable"
        values[f"camera.{camera.name}.depth"] = _DEPTH
    for dnn in plan.dnns:
        values |= {f"dnn.{dnn}.{limit}": 0.0 for limit in ("max_age_ms", "deadline_ms", "max_rate_hz")}
        values[f"dnn.{dnn}.enable"] = True
    return values


def _transport(msgtype: str) -> str:
    return "compressed" if msgtype.endswith("/CompressedImage") else "raw"
