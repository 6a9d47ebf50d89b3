"""Scores the package's three DNNs, loaded as in the node and decoded with the thresholds that average precision needs,
and writes the figures.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from multi_dnn_ros.common.reporting import write_json
from multi_dnn_ros.common.torch_threads import torch_threads
from multi_dnn_ros.models.weights import existing_file, load_weights, read_state_dict
from multi_dnn_ros.training.data import SEEDS
from multi_dnn_ros.training.datasets import RoadFrame, road_frames
from multi_dnn_ros.training.metrics import LaneScore, Truth, mean_average_precision
from multi_dnn_ros.training.recipes import versions
from multi_dnn_ros.training.scenes import LABELS, Scene, SceneGenerator

if TYPE_CHECKING:
    from multi_dnn_ros.models.dnn import Dnn


def add_parser(verbs: Any) -> None:
    verb = verbs.add_parser("evaluate", help="score the built-in DNNs on unseen scenes and on real roads")
    verb.add_argument("--count", type=int, default=500, help="unseen scenes, 640x480")
    verb.add_argument("--drive", type=int, default=300, help="frames of an unseen drive at 10 Hz, 640x480")
    verb.add_argument(
        "--seed", type=int, default=SEEDS["test"], help="seed of scenes and drive; 1 and 2 were used in training"
    )
    verb.add_argument(
        "--road",
        type=Path,
        metavar="DIR",
        help="folder with lane_masks/, at least one NAME.mp4, and photos NAME.jpg, some of which are not frames of the "
        "videos",
    )
    verb.add_argument(
        "--lane",
        type=Path,
        metavar="FILE",
        help="lane network to score instead of the built-in one, as written by `lane`",
    )
    verb.add_argument("--out", type=Path, required=True, help="JSON file to write")
    verb.set_defaults(run=run, libraries=("pycocotools",))


def builtin_dnns(suffix: str = "") -> dict[str, Dnn]:
    """The package's three DNNs by role, loaded as in the node. suffix: `_small` for the decomposed ones."""
    from multi_dnn_ros.models.load import load_dnn
    from multi_dnn_ros.settings.roles import PRESETS
    from multi_dnn_ros.settings.schema import DnnConfig

    return {
        role: load_dnn(role, DnnConfig(role=role, model=f"{preset.model}{suffix}")) for role, preset in PRESETS.items()
    }


class Evaluator:
    """Scores a lane, an object and a pedestrian DNN. Changes the thresholds of the given decoders."""

    def __init__(self, dnns: Mapping[str, Dnn]) -> None:
        self.dnns = dnns
        for role in ("object", "pedestrian"):
            # Average precision needs the whole precision-recall curve, also below the score threshold of the node. The
            # IoU threshold of NMS is that of YOLOv5's scores (val.py), so that boxes of close objects are kept.
            self.dnns[role].decoder.score_threshold = 0.01
            self.dnns[role].decoder.iou_threshold = 0.6

    @torch.no_grad()
    def infer(self, role: str, image: npt.NDArray[np.uint8]) -> Any:
        """Detections or Lanes of an image (H, W, 3) uint8."""
        dnn = self.dnns[role]
        output = dnn.module(*dnn.preprocess(torch.from_numpy(image)))
        return dnn.decoder((output,), (image.shape[0], image.shape[1]))

    def scenes(self, scenes: Iterable[Scene], count: int, name: str) -> dict[str, Any]:
        """Scores by role on generated scenes: F1, precision and recall for `lane`; mAP and `true_boxes` for the others.

        count, name: length and title of the progress bar. map50_ignoring_uncounted: map50 if detections on ignored
        boxes are not counted as false positives.
        """
        lanes = LaneScore()
        found: dict[str, list[Any]] = {"object": [], "pedestrian": []}
        truths: dict[str, list[Truth]] = {"object": [], "pedestrian": []}
        for scene in tqdm(scenes, name, count, unit="scene"):
            lanes.add(self.infer("lane", scene.image).mask, scene.lane_mask)
            for role, rows in found.items():
                rows.append(self.infer(role, scene.image))
                labels = self.dnns[role].labels
                truths[role].append(Truth.among(labels, scene.boxes, scene.class_ids, LABELS, scene.ignored))
        result: dict[str, Any] = {"lane": rounded(lanes.scores())}
        for role, rows in found.items():
            labels = self.dnns[role].labels
            plain = mean_average_precision(rows, truths[role], labels)
            lenient = mean_average_precision(rows, truths[role], labels, ignore=True)
            result[role] = {
                **rounded(plain),
                "map50_ignoring_uncounted": round(lenient["map50"], 4),
                "true_boxes": sum(len(truth.boxes) for truth in truths[role]),
            }
        return result

    def road(self, frames: Sequence[RoadFrame]) -> dict[str, Any]:
        """Lane scores on real frames, in total and per frame."""
        total, by_frame = LaneScore(), {}
        for frame in frames:
            mask = self.infer("lane", frame.image).mask
            single = LaneScore()
            for score in (total, single):
                score.add(mask, frame.mask)
            by_frame[frame.name] = round(single.f1, 4)
        return {**rounded(total.scores()), "frames": len(frames), "f1_by_frame": by_frame}

    def costs(self) -> dict[str, Any]:
        """By role: input (width, height), number of parameters, MACs, and CPU time in ms on one thread in eager mode
        (median of 20 runs after 3 warm-up runs).
        """
        with torch_threads(1):
            return {role: _cost_of(dnn) for role, dnn in self.dnns.items()}


def _cost_of(dnn: Dnn) -> dict[str, Any]:
    from torch.utils.flop_counter import FlopCounterMode

    times = []
    with torch.inference_mode():
        with FlopCounterMode(display=False) as counter:
            dnn.module(*dnn.example_inputs())
        for _ in range(23):
            start = time.process_time()
            dnn.module(*dnn.example_inputs())
            times.append(time.process_time() - start)
    return {
        "input": [dnn.preprocess.width, dnn.preprocess.height],
        "parameters": sum(p.numel() for p in dnn.module.parameters()),
        "macs": counter.get_total_flops() // 2,
        "cpu_ms": round(float(np.median(times[3:])) * 1e3, 1),
    }


def rounded(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores.items()}


def run(args: argparse.Namespace) -> int:
    parts = ("video", "photos", "other_photos") if args.road is not None else ()
    road = {part: road_frames(args.road, part) for part in parts}  # before scoring, which takes minutes
    dnns = builtin_dnns()
    if args.lane is not None:
        weights = read_state_dict(existing_file(str(args.lane), "--lane"))
        load_weights(dnns["lane"].module, weights, str(args.lane))
    evaluator = Evaluator(dnns)
    generator = SceneGenerator(640, 480, args.seed)
    drive = generator.drive(args.drive, 10.0)
    result: dict[str, Any] = {
        "command": "python -m multi_dnn_ros.training " + shlex.join(sys.argv[1:]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(),
        "seed": args.seed,
        "metric": "mAP by pycocotools; lane F1 of pixels, 3 px tolerance at 320 px width, from pixel counts summed "
        "over all images",
    }
    result["networks"] = evaluator.costs()
    scenes = evaluator.scenes(map(generator.scene, range(args.count)), args.count, "unseen scenes")
    result["unseen_scenes"] = {"count": args.count, **scenes}
    driven = evaluator.scenes(map(drive.frame, range(args.drive)), args.drive, "unseen drive")
    result["unseen_drive"] = {"count": args.drive, "hz": 10.0, **driven}
    if road:
        result["real_road"] = {part: evaluator.road(frames) for part, frames in road.items()}
    write_json(args.out, result)
    print(json.dumps(result, indent=1))
    return 0
