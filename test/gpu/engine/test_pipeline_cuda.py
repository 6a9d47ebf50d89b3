"""DNNs made from parameters: results, memory, failures, decoding on a GPU. CPU twins: test/backends, engine, models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from gpu_stages import GPU, needs

from multi_dnn_ros.backends import Tensors, green_contexts
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.captured_network import CapturedNetwork
from multi_dnn_ros.engine import DnnTask, Engine, Frame
from multi_dnn_ros.models.balance import balance
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import NodeConfig

WAIT = 60.0
partitioned = pytest.mark.skipif(not green_contexts.supported(), reason="needs a PyTorch with green contexts")
CAPTURED, NOT_CAPTURED = {"capture_preprocess": True}, {"capture_preprocess": False}


def configured(dnns: list[str], settings: dict) -> NodeConfig:
    """A configuration whose DNNs have these settings."""
    config = to_config({"device": "cuda:0", "dnns": dnns})
    for dnn in config.dnns.values():
        for name, value in settings.items():
            setattr(dnn, name, value)
    return config


def outputs_of(task: DnnTask, image: torch.Tensor) -> Tensors:
    """What the DNN decodes, on the CPU."""
    network = task.networks[1]
    return network.unpack(network.launch(task.preprocess(image)).cpu())[0]


@pytest.mark.parametrize(
    "parameters",
    [
        NOT_CAPTURED,
        CAPTURED,
        {"precision": "fp16", **CAPTURED},
        pytest.param({"sms": 16, **CAPTURED}, marks=partitioned),
        pytest.param({"sms": 8, "backend": "eager"}, marks=partitioned),
    ],
)
def test_frames_at_full_speed_give_what_each_gives_alone(parameters: dict):
    """Frames of two sizes; each is preprocessed while the one before is on the GPU."""
    config = configured(["lane", "object"], parameters)
    config.dnns["lane"].priority = 2
    pipeline = build(config)
    tasks = [_raw(task) for task in pipeline.tasks]
    rng = np.random.default_rng(0)
    sizes = ((240, 320), (360, 480))
    images = [rng.integers(0, 256, (*sizes[number % 2], 3), np.uint8) for number in range(30)]
    expected: dict[tuple[str, int], Tensors] = {}
    with torch.inference_mode():
        for task in tasks:
            for number, image in enumerate(images):
                outputs = outputs_of(task, torch.from_numpy(image).to(GPU))
                expected[task.name, number] = task.decode(outputs, image.shape[:2])
    found: dict[tuple[str, int], Tensors] = {}
    engine = Engine(
        tasks,
        policy="priority",
        device=pipeline.device,
        on_result=lambda r: found.__setitem__((r.dnn, r.frame.stamp_ns), r.output),
    )
    engine.start()
    for number, image in enumerate(images):
        assert engine.submit(Frame("front", number, image), WAIT)
    assert engine.wait_idle(WAIT)
    assert engine.stop(WAIT) == []
    assert found.keys() == expected.keys()
    for key, right in expected.items():
        check_agreement(found[key], right, 1e-2)


def _raw(task):
    return replace(task, decode=lambda outputs, size: tuple(output.clone() for output in outputs))


@pytest.mark.parametrize("parameters", [NOT_CAPTURED, CAPTURED])
def test_in_the_steady_state_nothing_is_allocated_on_gpu_or_host(parameters: dict):
    """Frames are uploaded through pinned memory; after the first ones, all of it is memory used before."""

    def allocations() -> tuple[int, int]:
        host = torch.cuda.host_memory_stats()
        return torch.cuda.memory_stats(GPU)["num_device_alloc"], host["num_host_alloc"]

    pipeline = build(configured(["lane"], parameters))
    engine = Engine(pipeline.tasks, device=pipeline.device, on_result=lambda r: None)
    engine.start()
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)

    def serve(frames: int) -> None:
        for number in range(frames):
            assert engine.submit(Frame("front", number, image), WAIT)
            assert engine.wait_idle(WAIT)

    serve(50)
    before = allocations()
    serve(200)
    after = allocations()
    assert engine.stop(WAIT) == []
    assert after == before


def test_memory_that_does_not_suffice_names_the_dnn_and_leaves_nothing():
    flat = {"device": "cuda:0", "dnns": ["lane", "object"]}
    build(to_config({**flat, "dnns": ["lane"]}))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-5, GPU)
    try:
        with pytest.raises(ConfigError, match=r"dnn.\w+: builtin:\w+ does not fit into the memory of cuda:0") as raised:
            build(to_config(flat))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
    assert "MiB are free" in str(raised.value)
    assert len(build(to_config(flat)).tasks) == 2


@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_a_detector_is_decoded_on_the_gpu_as_on_the_cpu(
    precision: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Candidates are chosen behind the last job, as one launch; the raw outputs stay on the GPU."""
    needs(precision, "cuda_graph")
    weights = tmp_path / "detector.pt"
    torch.manual_seed(0)
    detector = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    # Scores far apart, as a trained one's are: which of equals are chosen is nobody's business.
    balance(detector.eval().backbone, torch.randn(1, 3, 320, 320))
    for head in detector.head.classification_head.module_list:
        torch.nn.init.normal_(head[-1].weight, std=12.0)
    torch.save(detector.state_dict(), weights)
    flat = {"device": "cuda:0", "dnns": ["object"], "dnn.object.precision": precision}
    flat |= {"dnn.object.weights": str(weights)}
    flat |= {"dnn.object.model": "torchvision:ssdlite320_mobilenet_v3_large", "dnn.object.score_threshold": 0.01}
    pipeline = build(to_config(flat))
    (task,) = pipeline.tasks
    network = task.networks[1]
    assert isinstance(network, CapturedNetwork)
    assert not [r.getMessage() for r in caplog.records if r.name.startswith("multi_dnn_ros")]
    rng = np.random.default_rng(0)
    for _ in range(3):
        image = torch.from_numpy(rng.integers(0, 256, (240, 320, 3), np.uint8)).to(GPU)
        with torch.inference_mode():
            reduced = outputs_of(task, image)
            expected = pipeline.dnns["object"].decoder(tuple(tensor.cpu() for tensor in network.outputs), (240, 320))
            found = task.decode(reduced, (240, 320))
        assert len(found.scores) == len(expected.scores) > 0
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
        np.testing.assert_allclose(found.boxes, expected.boxes, rtol=1e-3, atol=0.1)
