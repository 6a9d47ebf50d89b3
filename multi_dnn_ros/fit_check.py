"""Whether what a node is configured for fits the device it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multi_dnn_ros.choices import timing_target
from multi_dnn_ros.engine import Engine
from multi_dnn_ros.pipeline import Pipeline, milliseconds
from multi_dnn_ros.profiling.fit import Demand, Verdict, check_fit
from multi_dnn_ros.profiling.predictor import Predictor
from multi_dnn_ros.profiling.service import Image, MakeEngine, Service, measure_services, predicted_services
from multi_dnn_ros.schema import NodeConfig

_FRAMES = 10


def fit_of(
    config: NodeConfig, pipeline: Pipeline, image: Image, rates: Mapping[str, float], predictor: Predictor | None = None
) -> Verdict:
    """Judge `config` with its cameras at `rates` hertz. image: (H, W, 3) uint8, what the DNNs are measured on."""
    services, doubts = services_of(config, pipeline, image, _FRAMES, predictor)
    gpu = pipeline.device.type == "cuda"
    return check_fit(demands_of(config, pipeline, services, rates), pipeline.servers, gpu=gpu, doubts=doubts)


def services_of(
    config: NodeConfig, pipeline: Pipeline, image: Image, frames: int, predictor: Predictor | None = None
) -> tuple[Mapping[str, Service], Sequence[str]]:
    """What a frame costs each DNN: predicted where the predictor has no doubts, else measured; and its doubts."""
    doubts: Sequence[str] = ()
    if predictor is not None:
        targets = {name: timing_target(name, settings, pipeline.device) for name, settings in config.dnns.items()}
        services, doubts = predicted_services(pipeline.dnns, predictor, targets, pipeline.servers, image)
        if not doubts:
            return services, ()
    services = measure_services(pipeline.tasks, engines_of(config, pipeline), image, pipeline.servers, frames)
    return services, doubts


def demands_of(
    config: NodeConfig, pipeline: Pipeline, services: Mapping[str, Service], rates: Mapping[str, float]
) -> list[Demand]:
    """What `config` asks of each DNN. rates: hertz by camera."""
    return [
        Demand(
            task.name,
            {camera: rates[camera] for camera in task.cameras},
            services[task.name].alone_ms,
            services[task.name].crowded_ms,
            config.dnns[task.name].deadline_ms or None,
            config.dnns[task.name].priority,
            services[task.name].shared_ms,
        )
        for task in pipeline.tasks
    ]


def engines_of(config: NodeConfig, pipeline: Pipeline) -> MakeEngine:
    """Engines like the one that will serve."""
    return lambda tasks, on_result: Engine(
        tasks,
        on_result=on_result,
        workers=pipeline.workers,
        policy=config.policy,
        device=pipeline.device,
        aging_ns=milliseconds(config.aging_ms),
    )
