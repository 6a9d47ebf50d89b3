"""Batch after batch on several units: partial batches, units that fail between batches, images of another shape."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_fakes import SHAPE, expected, table

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.partition.executor import NetworkRequest, random_images
from multi_dnn_ros.partition.session import BatchSession
from multi_dnn_ros.planning.batch_plan import plan_exact
from multi_dnn_ros.planning.batch_units import parse_units


def open_session(names: str, batch: int) -> BatchSession:
    units = parse_units(names)
    tables = {unit.name: table(unit.name, 1.0) for unit in units}
    return BatchSession(units, tables, plan_exact(tables, batch), NetworkRequest("fake"), "auto", timeout_s=60.0)


@pytest.fixture(scope="module")
def session():
    with open_session("fake:a/ms=0.01,fake:b/ms=0.01", 7) as opened:
        yield opened


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_batches_of_any_size_up_to_the_plans_give_their_outputs(session, sizes: list[int], seed: int) -> None:
    for size in sizes:
        images = random_images(SHAPE, size, seed)
        outputs = session.run(images)
        for output, right in zip(outputs, expected(images), strict=True):
            assert len(output) == size
            np.testing.assert_allclose(output, right, rtol=1e-6)
    assert not session.failures


def test_a_unit_that_failed_is_not_used_for_later_batches(caplog: pytest.LogCaptureFixture) -> None:
    with open_session("fake:a,fake:bad/die=1,fake:c", 12) as session:
        for seed in range(3):
            images = random_images(SHAPE, 12, seed)
            for output, right in zip(session.run(images), expected(images), strict=True):
                np.testing.assert_allclose(output, right, rtol=1e-6)
            assert len(session.failures) == 1
    (line,) = caplog.messages
    assert line.startswith("unit fake:bad/die=1 was killed by SIGKILL")
    assert line.endswith("; its images are divided among fake:a, fake:c")


def test_plans_change_between_batches_and_do_not_use_units_that_have_failed() -> None:
    images = random_images(SHAPE, 12)
    with open_session("fake:a,fake:bad/die=1,fake:c", 12) as session:
        session.run(images)
        for names, count in (("fake:a", 12), ("fake:a,fake:c", 5), ("fake:bad/die=1,fake:c", 7)):
            tables = {name: table(name, 1.0) for name in names.split(",")}
            session.change_plan(plan_exact(tables, count))
            for output, right in zip(session.run(images[:count]), expected(images[:count]), strict=True):
                np.testing.assert_allclose(output, right, rtol=1e-6)
        computed = session.compute()  # by the last plan, a unit of which has failed before
        assert computed.repeated_images == 7
        assert computed.recovery_ms > 0.0
        session.change_plan(plan_exact({"fake:bad/die=1": table("fake:bad/die=1", 1.0)}, 3))
        with pytest.raises(CommandError, match=r"no unit is left .*bad/die=1 was killed by SIGKILL"):
            session.run(images[:3])
        assert list(session.failures) == ["fake:bad/die=1"]


def test_units_are_prepared_at_the_same_time() -> None:
    """On GPUs this takes about ten seconds per unit."""
    with open_session("fake:a/prepare=1.5,fake:b/prepare=1.5", 4) as session:
        begin = time.monotonic()
        session.run(random_images(SHAPE, 4))
        assert time.monotonic() - begin < 2.9


def test_no_unit_left_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with open_session("fake:a/die=1,fake:b/fail=1", 4) as session, pytest.raises(CommandError, match="no unit is left"):
        session.run(random_images(SHAPE, 4))
    assert caplog.messages[-1].endswith("; no unit is left")


@pytest.mark.parametrize("shape", [(3, 3, 4, 5), (8, *SHAPE)])
def test_images_of_another_shape_or_too_many_are_refused(session, shape: tuple[int, ...]) -> None:
    with pytest.raises(CommandError, match=r"up to 7 images of the shape \(3, 4, 4\)"):
        session.load(np.zeros(shape, np.float32))
