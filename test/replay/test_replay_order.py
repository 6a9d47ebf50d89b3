"""Offline replay with DNNs whose results are known: order, stamps, accounts, drops."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_fakes import (
    SECOND,
    TOPIC,
    find_lanes,
    image,
    make_replay,
    parsed,
    read_bag,
    task,
    write_bag,
)

from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.replay.replay import StreamCount


def replay(
    bag: Path, out: Path, tasks: list, *, with_input: bool = False, **kwargs: object
) -> dict[tuple[str, str], StreamCount]:
    with BagReader(bag) as reader, BagWriter(out) as writer:
        summary = make_replay(tasks, **kwargs).run(reader, writer, with_input=with_input)
    assert all(each.offered == each.published + each.dropped.total() for each in summary.values())
    return summary


def test_every_frame_in_order_with_its_header_and_time(tmp_path: Path) -> None:
    """Fast and slow DNNs together: results are ordered by frame, then by DNN, and none is lost."""
    bag = write_bag(tmp_path / "in", [(TOPIC, 100 * SECOND + index, image(index, index)) for index in range(20)])
    tasks = [task("slow", delay_s=0.004), task("lane", find_lanes), task("fast", jobs=1)]
    summary = replay(bag, tmp_path / "out", tasks)
    assert {key: (stream.offered, stream.published) for key, stream in summary.items()} == {
        (name, "front"): (20, 20) for name in ("slow", "lane", "fast")
    }
    messages = read_bag(tmp_path / "out")
    names = ["slow/detections", "lane/mask", "lane/points", "fast/detections"]
    assert [message.topic for message in messages] == [f"/multi_dnn/front/{name}" for name in names] * 20
    for position, message in enumerate(messages):
        index = position // len(names)
        assert message.stamp_ns == 100 * SECOND + index
        header = parsed(message).header
        assert (header.stamp.sec, header.stamp.nanosec, header.frame_id) == (index, 5, "cam")
    assert [parsed(m).detections[0].results[0].hypothesis.score for m in messages[::4]] == pytest.approx(
        [index / 255 for index in range(20)]
    )
    assert [parsed(message).data[0] for message in messages[1::4]] == list(range(20))


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_corrupt_frames_are_counted_and_the_next_is_served(tmp_path: Path, storage: str) -> None:
    short = image(40, 2)
    short.data = short.data[:-1]
    odd = image(40, 4)
    odd.encoding = "infrared"
    no_image = ("sensor_msgs/msg/Image", b"\x00\x01")
    frames = [image(10, 0), image(20, 1), short, image(30, 3), odd, no_image, image(50, 6)]
    bag = write_bag(tmp_path / "in", [(TOPIC, index, frame) for index, frame in enumerate(frames)], storage)
    summary = replay(bag, tmp_path / "out", [task("object"), task("pedestrian", delay_s=0.001)])
    for dnn in ("object", "pedestrian"):
        stream = summary[dnn, "front"]
        assert (stream.offered, stream.published, dict(stream.dropped)) == (7, 4, {"bad_image": 3})
        assert "data has 71 bytes" in stream.first_drops["bad_image"]
    assert [message.stamp_ns for message in read_bag(tmp_path / "out")] == [0, 0, 1, 1, 3, 3, 6, 6]
