"""For any sequence of offers, every frame is accounted for once, and the engine stops."""

from __future__ import annotations

import threading
from collections import Counter

from engine_fakes import WAIT, CountingEngine, PassingClock, Recorder, check_accounts, frame, task
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.engine.policies import POLICIES

CAMERAS = ("front", "left", "rear")
FAILS = 7  # images of this value make every DNN raise

dnns = st.lists(
    st.builds(
        dict,
        jobs=st.integers(1, 4),
        cameras=st.lists(st.sampled_from(CAMERAS), min_size=1, max_size=3, unique=True).map(tuple),
        priority=st.integers(-3, 3),
        deadline_ns=st.none() | st.integers(1, 10**9),
        max_age_ns=st.none() | st.integers(1, 10**9),
        batches=st.sampled_from([(), (2,), (2, 3), (3,)]),
        batch_delay_ns=st.sampled_from([0, 50_000]),
    ),
    min_size=1,
    max_size=4,
)
offers = st.lists(st.tuples(st.sampled_from(CAMERAS), st.integers(0, 9), st.integers(0, 10**9)), max_size=40)


def decode(outputs: tuple, size: tuple[int, int]) -> float:
    if int(outputs[0]) % 10 == FAILS:
        raise ValueError("no such number")
    return float(outputs[0])


@settings(max_examples=60)
@given(
    dnns=dnns,
    offers=offers,
    policy=st.sampled_from(list(POLICIES)),
    workers=st.integers(1, 3),
    max_failures=st.integers(1, 4),
    idle_every=st.integers(1, 10),
)
def test_every_frame_ends_once(
    dnns: list[dict], offers: list, policy: str, workers: int, max_failures: int, idle_every: int
) -> None:
    recorder, clock = Recorder(), PassingClock()
    tasks = [task(f"dnn{number}", decode=decode, **settings) for number, settings in enumerate(dnns)]
    engine = CountingEngine(
        tasks, workers=workers, policy=policy, max_failures=max_failures, clock=clock, **recorder.callbacks()
    )
    engine.start()
    expected: Counter[tuple[str, str]] = Counter()
    for number, (camera, value, pause_ns) in enumerate(offers):
        clock.now += pause_ns
        serving = [t.name for t in tasks if camera in t.cameras]
        if serving:
            engine.offer(frame(camera, value=value, context=number))
        expected.update((name, camera) for name in serving)
        if number % idle_every == 0:
            assert engine.wait_idle(WAIT)
            check_accounts(engine)
    assert engine.stop(WAIT) == []
    check_accounts(engine)
    ends = Counter((end.dnn, end.frame.camera) for end in (*recorder.results, *recorder.drops))
    assert ends == expected
    each = Counter((end.dnn, end.frame.context) for end in (*recorder.results, *recorder.drops))
    assert all(count == 1 for count in each.values())
    for name, camera in expected:
        order = [r.frame.context for r in recorder.results if (r.dnn, r.frame.camera) == (name, camera)]
        assert order == sorted(order)  # results of a stream never overtake one another
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("worker-", "dnn-"))]
