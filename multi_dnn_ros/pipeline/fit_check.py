"""Checks whether a node's configuration fits the device that it runs on.

A camera's parameters do not contain the size of its images. Until the first image has arrived, ASSUMED_SIZE is used.
Then the check is repeated with the same measurements, in which costs that depend on the size are per megapixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from multi_dnn_ros.backends.static_stages import streams_of
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.common.time_units import ms_to_ns
from multi_dnn_ros.engine import DnnTask, Engine
from multi_dnn_ros.pipeline.choices import timing_target
from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.planning.fit import Demand
from multi_dnn_ros.planning.image_costs import decode_ms, preprocess_ms
from multi_dnn_ros.planning.image_sizes import CameraLoad, Fit, Size
from multi_dnn_ros.planning.predictor import Predictor
from multi_dnn_ros.planning.service import Image, MakeEngine, Service, measure_services, predicted_services
from multi_dnn_ros.settings.schema import NodeConfig

#: (width, height) of a camera's images before the first one has arrived.
ASSUMED_SIZE: Size = (640, 480)
_FRAMES = 10


def measure_fit(
    config: NodeConfig,
    pipeline: Pipeline,
    sizes: Mapping[str, Size],
    rates: Mapping[str, float],
    predictor: Predictor | None = None,
    frames: int = _FRAMES,
) -> Fit:
    """Measure what the fit check of `config` needs. The engine must not serve at the same time.

    sizes: (width, height) of the images by camera, if known. rates: hertz by camera. frames: number measured per DNN.
    """
    assumed = {
        camera: enlarged(sizes.get(camera, ASSUMED_SIZE), (task for task in pipeline.tasks if camera in task.cameras))
        for camera in config.cameras
    }
    images = {camera: np.zeros((height, width, 3), np.uint8) for camera, (width, height) in assumed.items()}
    services, unpredicted = service_times(config, pipeline, images, frames, predictor)
    demands = make_demands(config, pipeline, services, rates)
    served = {camera for task in pipeline.tasks for camera in task.cameras}
    transports = {config.cameras[camera].transport for camera in served}
    decoding_ms = {transport: decode_ms(transport) for transport in sorted(transports)}
    cameras = {
        camera: CameraLoad(
            # Images that no DNN gets are not decoded.
            min(rates[camera], sum(demand.cameras.get(camera, 0.0) for demand in demands)),
            assumed[camera],
            camera in sizes,
            decoding_ms[settings.transport],
        )
        for camera, settings in config.cameras.items()
        if camera in served
    }
    return Fit(
        tuple(demands),
        cameras,
        {task.name: preprocess_ms(task, pipeline.device) for task in pipeline.tasks},
        pipeline.servers,
        cpu_count(),
        pipeline.device.type == "cuda",
        tuple(unpredicted),
    )


def enlarged(size: Size, tasks: Iterable[DnnTask]) -> Size:
    """(width, height) of an image, enlarged to what these DNNs read."""
    for task in tasks:
        height, width = task.enlarge_to_min(size[::-1])
        size = width, height
    return size


def service_times(
    config: NodeConfig,
    pipeline: Pipeline,
    images: Image | Mapping[str, Image],
    frames: int,
    predictor: Predictor | None = None,
) -> tuple[Mapping[str, Service], Sequence[str]]:
    """Cost of a frame for each DNN, predicted or measured, and the reasons why it could not be predicted. If there is
    such a reason, all costs are measured.

    images: (H, W, 3) uint8 by camera, or one for all. Predictions are for single images of a DNN's first camera.
    """
    unpredicted: Sequence[str] = ()
    if predictor is not None:
        chosen = {**config.dnns, **pipeline.backends}
        targets = {name: timing_target(name, settings, pipeline.device) for name, settings in chosen.items()}
        image_of = {task.name: images[task.cameras[0]] if isinstance(images, Mapping) else images
                    for task in pipeline.tasks}  # fmt: skip
        streams = {task.name: [streams_of(stage) for stage in task.stages] for task in pipeline.tasks}
        services, unpredicted = predicted_services(
            pipeline.dnns, predictor, targets, pipeline.servers, image_of, streams
        )
        if not unpredicted:
            return services, ()
    services = measure_services(pipeline.tasks, engine_factory(config, pipeline), images, pipeline.servers, frames)
    return services, unpredicted


def make_demands(
    config: NodeConfig, pipeline: Pipeline, services: Mapping[str, Service], rates: Mapping[str, float]
) -> list[Demand]:
    """The demand of each DNN under `config`, which `max_rate_hz` may limit. rates: hertz by camera.

    A DNN with `enable: false` counts as well, because it can be enabled at any time.
    """
    return [
        Demand(
            task.name,
            {camera: config.dnns[task.name].limited_hz(rates[camera]) for camera in task.cameras},
            services[task.name].alone_ms,
            services[task.name].crowded_ms,
            config.dnns[task.name].deadline_ms or None,
            config.dnns[task.name].priority,
            services[task.name].shared_ms,
            wait_ms=config.dnns[task.name].batch_delay_ms if task.batches else 0.0,
            batch=services[task.name].batch,
        )
        for task in pipeline.tasks
    ]


def engine_factory(config: NodeConfig, pipeline: Pipeline) -> MakeEngine:
    """A function that creates engines with the settings of the engine that will serve."""
    return lambda tasks, on_result: Engine(
        tasks,
        on_result=on_result,
        workers=pipeline.workers,
        policy=config.policy,
        device=pipeline.device,
        aging_ns=ms_to_ns(config.aging_ms),
        max_launched=config.max_launched or None,
    )
