"""Which engine process serves which DNN at one moment: a table that offers read without a lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.served_process import ServedProcess


@dataclass(frozen=True)
class CameraRoutes:
    """Of one camera. served: processes, each with the DNNs that it serves. lost: of the other DNNs, how to count."""

    served: tuple[tuple[ServedProcess, tuple[str, ...]], ...] = ()
    lost: tuple[tuple[str, DropReason, str], ...] = ()


@dataclass(frozen=True)
class Routes:
    """cameras: by name."""

    cameras: Mapping[str, CameraRoutes] = field(default_factory=dict)

    def of(self, camera: str) -> CameraRoutes:
        return self.cameras.get(camera, _NOBODY)


_NOBODY = CameraRoutes()


def make_routes(
    dnns: Mapping[str, tuple[str, ...]],
    served: Mapping[str, ServedProcess],
    lost: Mapping[str, tuple[DropReason, str]],
) -> Routes:
    """dnns: by camera. served: by DNN. lost: by DNN, of all the others."""
    cameras = {}
    for camera, names in dnns.items():
        processes: dict[int, tuple[ServedProcess, tuple[str, ...]]] = {}
        for name in names:
            if name in served:
                process, its = processes.get(id(served[name]), (served[name], ()))
                processes[id(process)] = process, (*its, name)
        cameras[camera] = CameraRoutes(
            tuple(processes.values()), tuple((name, *lost[name]) for name in names if name not in served)
        )
    return Routes(cameras)
