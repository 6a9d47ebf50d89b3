"""What a user would write instead of this package: one plain process per network with torch.compile.

There is no ROS and no finding of lane lines. The frames of the cameras lie in memory that is page-locked for a GPU;
boxes and masks are reduced on the device; when every camera has a new frame, they are one batch. Every process has the
same pictures and the same clock, so that nothing is sent between processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt
import torch
import torchvision
from torch import nn
from torch._inductor import config as inductor_config
from torch.nn import functional
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD

_CANDIDATES, _BOXES, _MIN_SCORE, _MAX_OVERLAP = 300, 100, 0.4, 0.5
_IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_WARM_UP_CALLS = 6
#: Different pictures of each camera.
PICTURES = 6


def make_pictures(cameras: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """(cameras, PICTURES, H, W, 3) BGR noise. size: (width, height)."""
    return np.random.default_rng(0).integers(0, 256, (cameras, PICTURES, size[1], size[0], 3), np.uint8)


@dataclass(frozen=True)
class Phase:
    """A measured time, seconds of the monotonic clock, in which `cameras` cameras take frames at `rate_hz` each.

    Frame n of camera c is taken at begin_s + (n + c / cameras) / rate_hz, with picture n modulo PICTURES.
    """

    rate_hz: float
    begin_s: float
    end_s: float
    cameras: int

    @property
    def frames(self) -> int:
        """Number of frames of all cameras."""
        return self.cameras * int((self.end_s - self.begin_s) * self.rate_hz)

    def newest(self, now_s: float) -> npt.NDArray[np.int64]:
        """(cameras,) number of the newest frame at a time; -1: there is none yet."""
        passed = (min(now_s, self.end_s) - self.begin_s) * self.rate_hz - np.arange(self.cameras) / self.cameras
        return np.maximum(np.floor(passed), -1).astype(np.int64)

    def taken_s(self, camera: int, number: int) -> float:
        """When a frame is taken."""
        return self.begin_s + (number + camera / self.cameras) / self.rate_hz

    def wait(self, seen: npt.NDArray[np.int64]) -> bool:
        """Wait for a frame after the ones of these numbers; False: the phase has ended."""
        due_s = min(self.taken_s(camera, int(number) + 1) for camera, number in enumerate(seen))
        if due_s >= self.end_s:
            return False
        time.sleep(max(0.0, due_s - time.monotonic()))
        return True


@dataclass(frozen=True)
class Report:
    """What a process did in a phase. latencies_ms: from the time of a frame to its result on the host. cpu_s: its CPU
    time.
    """

    latencies_ms: list[float]
    cpu_s: float


@dataclass(frozen=True)
class Peer:
    """A network of torchvision. size: (width, height) of its input. classes: None for the network's own number."""

    network: str
    size: tuple[int, int]
    classes: int | None = None


class FrameModel(nn.Module):
    """Preprocessing, network and reduction: (N, H, W, 3) uint8 BGR -> a mask, or the best boxes, scores and labels."""

    def __init__(self, peer: Peer, device: torch.device) -> None:
        super().__init__()
        classes = {} if peer.classes is None else {"num_classes": peer.classes}
        torch.manual_seed(0)
        net = torchvision.models.get_model(peer.network, weights=None, weights_backbone=None, **classes)
        self.net = net.eval().to(device, memory_format=torch.channels_last)
        self.size = peer.size[::-1]
        self.dtype = torch.float16 if device.type == "cuda" else torch.float32
        self.detects = hasattr(net, "anchor_generator")
        mean, std = (net.transform.image_mean, net.transform.image_std) if self.detects else _IMAGENET
        self.mean, self.std = (torch.tensor(each, device=device).view(1, 3, 1, 1) for each in (mean, std))
        if self.detects:
            self.has_background = isinstance(net, SSD)
            empty = torch.zeros(1, 3, *self.size, device=device)
            with torch.no_grad():
                features = list(net.backbone(empty).values())
                self.anchors = net.anchor_generator(ImageList(empty, [self.size]), features)[0]
        net.to(self.dtype)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pixels = images.permute(0, 3, 1, 2).flip(1).float() / 255
        scaled = functional.interpolate(pixels, self.size, mode="bilinear", align_corners=False)
        inputs = ((scaled - self.mean) / self.std).to(self.dtype).contiguous(memory_format=torch.channels_last)
        if not self.detects:
            return ((self.net(inputs)["out"][:, 0] > 0).to(torch.uint8),)
        outputs = self.net.head(list(self.net.backbone(inputs).values()))
        logits = outputs["cls_logits"].float()
        best, labels = (logits.softmax(-1)[..., 1:] if self.has_background else logits.sigmoid()).max(-1)
        scores, index = best.topk(min(_CANDIDATES, best.shape[1]), 1)
        deltas = outputs["bbox_regression"].float().gather(1, index[..., None].expand(-1, -1, 4))
        boxes = self.net.box_coder.decode_single(deltas.reshape(-1, 4), self.anchors[index].reshape(-1, 4))
        return boxes.view(*scores.shape, 4), scores, labels.gather(1, index)


def run_peer(peer: Peer, device_name: str, cameras: int, size: tuple[int, int], connection: Connection) -> None:
    """The process of a network: says when it is ready, then answers each phase with a report. size: of the images."""
    torch.set_num_threads(1)
    device = torch.device(device_name)
    images = torch.from_numpy(make_pictures(cameras, size))
    model: nn.Module = FrameModel(peer, device)
    infer, detects = model.__call__, model.detects
    if device.type == "cuda":
        torch.cuda.set_device(device)
        images = images.pin_memory()
        torch.backends.cudnn.benchmark = True
        inductor_config.freezing = True
        infer = torch.compile(model, mode="reduce-overhead", dynamic=False)
    inputs = {count: torch.zeros_like(images[:count, 0], device=device) for count in (1, cameras)}

    def results(picked: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
        """The mask, or the boxes, of each (camera, number of the frame), on the host."""
        batch = inputs[len(picked)]
        for row, (camera, number) in enumerate(picked):
            batch[row].copy_(images[camera, number % PICTURES], non_blocking=True)
        if device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        outputs = infer(batch)
        if not detects:
            return list(outputs[0].cpu())
        found = []
        for boxes, scores, labels in zip(*outputs, strict=True):
            keep = torchvision.ops.batched_nms(boxes, scores, labels, _MAX_OVERLAP)[:_BOXES]
            found.append(torch.cat([boxes[keep], scores[keep, None], labels[keep, None].float()], 1))
        on_host = torch.cat(found).cpu().split([len(each) for each in found])
        return [each[each[:, 4] > _MIN_SCORE] for each in on_host]

    with torch.no_grad():
        for count in inputs:
            for _ in range(_WARM_UP_CALLS):
                results([(camera, 0) for camera in range(count)])
        connection.send("ready")
        while True:
            phase: Phase = connection.recv()
            latencies_ms, cpu_s, seen = list[float](), time.process_time(), np.full(cameras, -1)
            while phase.wait(seen):
                newest = phase.newest(time.monotonic())
                waiting = [(camera, int(newest[camera])) for camera in np.flatnonzero(newest > seen).tolist()]
                picked = waiting if len(waiting) == cameras else sorted(waiting, key=lambda it: phase.taken_s(*it))[:1]
                if picked:
                    results(picked)
                now_s = time.monotonic()
                latencies_ms += [1e3 * (now_s - phase.taken_s(*each)) for each in picked]
                for camera, number in picked:
                    seen[camera] = number
            connection.send(Report(latencies_ms, time.process_time() - cpu_s))
