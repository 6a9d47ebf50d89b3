"""What a fleet requests from a cluster, and decisions while units are lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.fleet.cluster_units import bundles, check_room, units_of
from multi_dnn_ros.fleet.shares import Allocation
from multi_dnn_ros.fleet.sharing import Sharing
from multi_dnn_ros.fleet.usable_units import decide_for_usable, usable_limits
from multi_dnn_ros.planning.batch_units import parse_unit


def test_a_unit_is_a_bundle() -> None:
    units = [parse_unit(name) for name in ("cuda:0", "cuda:1", "cpu:4")]
    assert bundles(units) == [{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}, {"CPU": 4}]
    with pytest.raises(UsageError, match="unit 'cpu': a cluster needs the number of threads"):
        bundles([parse_unit("cpu")])


def test_by_default_the_units_are_all_gpus_or_the_cores_of_each_host() -> None:
    gpu_hosts = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 16.0}, {"CPU": 8.0, "GPU": 1.0, "node:a": 1.0}]
    assert [unit.name for unit in units_of(gpu_hosts)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [unit.name for unit in units_of([{"CPU": 2.0}, {"memory": 1.0}, {"CPU": 4.0}])] == ["cpu:2", "cpu:4"]
    with pytest.raises(CommandError, match="neither GPUs nor CPUs; hosts: none"):
        units_of([{"memory": 1.0}])


def test_too_few_resources_are_named_with_those_of_the_hosts() -> None:
    hosts = [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 2.0}]
    check_room(bundles([parse_unit("cpu:2")] * 2), hosts)
    check_room(bundles([parse_unit("cuda:0")]), hosts)
    with pytest.raises(CommandError, match=r"no host has 1 CPU and 1 GPU left.*hosts: 2 CPUs and 1 GPU; 2 CPUs;"):
        check_room(bundles([parse_unit("cuda:0"), parse_unit("cuda:1")]), hosts)
    with pytest.raises(CommandError, match="no host has 4 CPUs left"):
        check_room(bundles([parse_unit("cpu:4")]), hosts)  # four in all, on no host


def test_units_of_several_sizes_that_fit_are_not_refused() -> None:
    """The 3 fits on the second host, both 2 on the first; with the 3 on the first host, there is no room for a 2."""
    requested = bundles([parse_unit(name) for name in ("cpu:3", "cpu:2", "cpu:2")])
    check_room(requested, [{"CPU": 4.0}, {"CPU": 3.0}])
    with pytest.raises(CommandError, match="no host has 2 CPUs left"):
        check_room(requested, [{"CPU": 3.0}, {"CPU": 3.0}])


@given(cores=st.lists(st.integers(0, 9), min_size=1, max_size=5), threads=st.integers(1, 4), count=st.integers(1, 12))
def test_equal_units_have_room_exactly_if_the_hosts_hold_so_many(cores: list[int], threads: int, count: int) -> None:
    hosts = [{"CPU": float(core)} for core in cores]
    requested = bundles([parse_unit(f"cpu:{threads}")] * count)
    if sum(core // threads for core in cores) >= count:
        check_room(requested, hosts)
    else:
        with pytest.raises(CommandError):
            check_room(requested, hosts)
    assert [host["CPU"] for host in hosts] == cores  # unchanged


@given(
    usable=st.lists(st.booleans(), min_size=2, max_size=5).filter(any),
    jobs=st.integers(1, 4),
    periods=st.integers(1, 6),
    data=st.data(),
)
def test_no_tenth_is_ever_given_to_a_lost_unit(
    usable: list[bool], jobs: int, periods: int, data: st.DataObject
) -> None:
    sharing = Sharing()
    allocation = {f"j{k}": (0,) * len(usable) for k in range(jobs)}
    for _ in range(periods):
        slow_downs = {job: data.draw(st.floats(1.0, 20.0)) for job in allocation}
        use = [data.draw(st.floats(0.0, 1.0)) for _ in usable]
        allocation = decide_for_usable(sharing, usable, allocation, slow_downs, use, {}).allocation
        for shares in allocation.values():
            assert sum(shares) == 10
            assert all(can or not tenths for tenths, can in zip(shares, usable, strict=True))


def test_expectations_are_about_all_units_and_never_about_shares_of_a_lost_one() -> None:
    """Unit 1 is lost; `a` and `b` share unit 0, and unit 2 has no jobs."""
    asked: list[Allocation] = []

    def expect(allocation: Allocation) -> dict[str, float]:
        asked.append(allocation)
        together = allocation["a"] == allocation["b"]
        return dict.fromkeys(allocation, 2.0 if together else 1.0)

    allocation: Allocation = {"a": (10, 0, 0), "b": (10, 0, 0)}
    decision = decide_for_usable(
        Sharing(), (True, False, True), allocation, {"a": 2.0, "b": 2.0}, [1.0, 0.0, 0.0], {}, expect=expect
    )
    assert set(decision.allocation.values()) == {(10, 0, 0), (0, 0, 10)}
    assert asked
    assert all(len(shares) == 3 and not shares[1] for each in asked for shares in each.values())


def test_limits_are_zero_on_lost_units() -> None:
    assert usable_limits((10, 4, 10), (True, True, False)) == (10, 4, 0)
