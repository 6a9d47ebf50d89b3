"""Which engine process serves which DNN: a table that is replaced as a whole, so it can be read without a lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.served_process import ServedProcess


@dataclass(frozen=True)
class CameraRoutes:
    """The routes of one camera. served: processes, each with the DNNs of the camera that it serves. lost: (DNN, drop
    reason, message) of the other DNNs of the camera.
    """

    served: tuple[tuple[ServedProcess, tuple[str, ...]], ...] = ()
    lost: tuple[tuple[str, DropReason, str], ...] = ()


@dataclass(frozen=True)
class Routes:
    """The routes of all cameras. cameras: by name."""

    cameras: Mapping[str, CameraRoutes] = field(default_factory=dict)

    def of(self, camera: str) -> CameraRoutes:
        """The routes of a camera; empty if it is not in the table."""
        return self.cameras.get(camera, _EMPTY)


_EMPTY = CameraRoutes()


def make_routes(
    dnns: Mapping[str, tuple[str, ...]],
    served: Mapping[str, ServedProcess],
    lost: Mapping[str, tuple[DropReason, str]],
) -> Routes:
    """Make the table. dnns: by camera. served: by DNN. lost: by DNN, for every DNN that is not in `served`."""
    cameras = {}
    for camera, names in dnns.items():
        processes: dict[int, tuple[ServedProcess, tuple[str, ...]]] = {}
        for name in names:
            if name in served:
                process, others = processes.get(id(served[name]), (served[name], ()))
                processes[id(process)] = process, (*others, name)
        cameras[camera] = CameraRoutes(
            tuple(processes.values()), tuple((name, *lost[name]) for name in names if name not in served)
        )
    return Routes(cameras)
