"""The configuration of the node that a benchmark starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.replay.expected_kind import expected_kind
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind
from multi_dnn_ros.vision.results import result_name

Stream = tuple[str, str]  # DNN, camera
#: An entry of the value `results` in the node's status: `<dnn> (<kind>)` or `<dnn>/<output> (<kind>)`.
_RESULT = re.compile(r"(\w+)(/\w+)? \(([^)]+)\)")


def streams_of(config: NodeConfig, cameras: Sequence[str]) -> list[Stream]:
    """Which DNN serves which of `cameras`, according to `config`.

    Raises UsageError for a DNN without cameras, and for a camera without DNNs that are switched on.
    """
    streams = []
    for name, dnn in config.dnns.items():
        served = [camera for camera in cameras if not dnn.cameras or camera in dnn.cameras]
        if not served:
            wanted, present = ", ".join(dnn.cameras), ", ".join(cameras)
            raise UsageError(f"parameter dnn.{name}.cameras is {wanted}; this run has the cameras {present}")
        streams += [(name, camera) for camera in served]
    if idle := [camera for camera in cameras if all(camera != name for _, name in streams)]:
        raise UsageError(f"camera {idle[0]} of this run is in none of the parameters dnn.<dnn>.cameras")
    for camera in cameras:
        serving = [dnn for dnn, name in streams if name == camera]
        if not any(config.dnns[dnn].enable for dnn in serving):
            names = ", ".join(f"dnn.{dnn}.enable" for dnn in serving)
            raise UsageError(f"camera {camera} of this run has no results: its DNNs are all switched off by {names}")
    return streams


def first_result(dnn: str, settings: DnnConfig) -> tuple[str, ResultKind]:
    """Name and kind of a DNN's result, or of the first of several, according to its parameters.

    Raises ExtensionError if only the model determines the kind.
    """
    if not settings.outputs:
        return dnn, expected_kind(settings.role, settings.decoder)
    output, first = next(iter(settings.outputs.items()))
    return result_name(dnn, output), expected_kind("", first.decoder)  # a role has defaults only for a single result


def reported_results(text: str) -> dict[str, tuple[str, ResultKind]]:
    """For each DNN what :func:`first_result` returns, as a configured node reports it.

    text: value `results` of the node's status.
    """
    found: dict[str, tuple[str, ResultKind]] = {}
    for dnn, output, kind in _RESULT.findall(text):
        found.setdefault(dnn, (dnn + output, RESULT_KINDS.get(kind)))
    return found


def flat_parameters(config: NodeConfig) -> Mapping[str, Any]:
    """Parameters as in a parameter file, without empty lists and mappings, which are defaults anyway: YAML parameter
    files cannot contain empty lists, and rcl prefixes the names that follow an empty mapping with the mapping's name.
    """
    values = config.model_dump()
    cameras, dnns = values.pop("cameras"), values.pop("dnns")
    for dnn in dnns.values():
        outputs = dnn.pop("outputs")
        dnn |= {"outputs": list(outputs), "output": outputs}
    values |= {"cameras": list(cameras), "dnns": list(dnns), "camera": cameras, "dnn": dnns}
    parameters: Mapping[str, Any] = _without_empty(values)
    return parameters


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item not in ([], {})}
    return value
