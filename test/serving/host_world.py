"""Engine processes that exist on paper only: they do what Supervisor asks for when a test lets them, or die."""

from __future__ import annotations

from multi_dnn_ros.serving.groups import (
    Action,
    Begin,
    Configure,
    Disable,
    Enable,
    Finish,
    Kill,
    Limits,
    Phase,
    Say,
    Spawn,
)
from multi_dnn_ros.serving.supervision import Supervisor

DNNS = ("lane", "object", "pedestrian")
LIMITS = Limits(fault_window_s=60.0)


class World:
    """time_s: the clock. state: of each process that was not reaped; it is what the process does next."""

    def __init__(self, standby: str = "none", dnns: tuple[str, ...] = DNNS, limits: Limits = LIMITS) -> None:
        self.time_s = 1000.0
        self.supervisor = Supervisor("cpu", dnns, limits, standby, lambda: round(self.time_s * 1e9))
        self.dnns = dnns
        self.state: dict[int, str] = {}
        self.holds: dict[int, tuple[str, ...]] = {}  # configured for
        self.answers: set[int] = set()
        self.disabled: dict[str, str] = {}
        self.lines: list[tuple[int, str]] = []
        self.spawned: list[float] = []
        first = self.supervisor.adopt()
        self.state[first], self.holds[first] = "configured", dnns
        self.do(self.supervisor.activate())

    def do(self, actions: list[Action]) -> None:
        """As the host does it; what is impossible for a real process fails."""
        for action in actions:
            if isinstance(action, Spawn):
                assert action.key not in self.state
                self.state[action.key] = "starting"
                self.spawned.append(self.time_s)
            elif isinstance(action, Configure):
                assert self.state[action.key] == "ready"
                assert action.dnns
                self.state[action.key], self.holds[action.key] = "configuring", action.dnns
            elif isinstance(action, Begin):
                assert self.state[action.key] == "configured"
                self.state[action.key] = "serving"
            elif isinstance(action, Finish):
                assert self.state[action.key] == "serving"
                self.state[action.key] = "finishing"
            elif isinstance(action, Kill):
                assert self.state[action.key] != "killed"
                self.state[action.key] = "killed"
            elif isinstance(action, Disable):
                assert action.dnn not in self.disabled
                self.disabled[action.dnn] = action.message
            elif isinstance(action, Enable):
                del self.disabled[action.dnn]
            elif isinstance(action, Say):
                self.lines.append((action.level, action.text))
        self.check()

    def check(self) -> None:
        """What holds at any moment."""
        supervisor = self.supervisor
        now_ns = round(self.time_s * 1e9)
        assert sorted(dnn for group in supervisor.groups for dnn in group.dnns) == sorted(self.dnns)
        for dnn, key in supervisor.routes.items():
            assert self.state[key] == "serving", f"{dnn} goes to a process that is {self.state[key]}"
            assert dnn in self.holds[key]
            assert dnn not in self.disabled
        roles = [supervisor.standby.key, supervisor.merging.key]
        for group in supervisor.groups:
            roles += [group.process, group.coming]
            prepared = group.process is not None or group.coming is not None
            assert not group.dnns or prepared or group.next_try_ns > now_ns, f"nobody restores {group}"
            assert group.own <= (len(group.dnns) == 1)
            if group.disabled is not None:
                assert self.disabled[group.dnns[0]] == group.disabled
        assert len(self.disabled) == sum(group.disabled is not None for group in supervisor.groups)
        taken = [key for key in roles if key is not None]
        assert len(taken) == len(set(taken)), "a process with two roles"
        for key, state in self.state.items():
            assert key in taken or state in ("killed", "finishing"), f"process {key} ({state}) is forgotten"
        if supervisor.active:
            for group in supervisor.groups:
                if group.process is not None:
                    assert all(supervisor.routes[dnn] == group.process for dnn in group.dnns)

    # -- what happens

    def step(self, key: int) -> None:
        """A process gets one step further."""
        state, supervisor = self.state[key], self.supervisor
        if state == "starting":
            self.state[key] = "ready"
            self.do(supervisor.ready(key))
        elif state == "configuring":
            self.state[key] = "configured"
            self.do(supervisor.configured(key))
        elif state == "serving" and key not in self.answers:
            self.answers.add(key)
            self.do(supervisor.answered(key, round(self.time_s * 1e9)))
        elif state == "finishing":
            self.state[key] = "configured"
            self.do(supervisor.stopped(key))
        elif state == "killed":
            self.end(key, "killed")

    def end(self, key: int, cause: str = "killed by SIGSEGV", *under_way: str) -> None:
        """A process is gone, and was reaped."""
        del self.state[key]
        self.do(self.supervisor.ended(key, cause, under_way, self._answer(key)))

    def hang(self, key: int, *under_way: str) -> None:
        self.do(self.supervisor.condemn(key, "no sign of life", under_way, self._answer(key)))

    def refuse(self, key: int, *, memory: bool = False) -> None:
        if self.state[key] == "configuring":
            self.do(self.supervisor.refused(key, "out of memory" if memory else "no such file", memory=memory))

    def wait(self, seconds: float) -> None:
        """Time passes in small steps; processes work as they should."""
        until = self.time_s + seconds
        while self.time_s < until:
            self.time_s += min(0.5, until - self.time_s)
            for key in list(self.state):
                if key in self.state:
                    self.step(key)
            self.do(self.supervisor.tick())

    def _answer(self, key: int) -> int | None:
        return round(self.time_s * 1e9) - 1 if key in self.answers else None

    # -- questions

    def serving(self, dnn: str) -> int | None:
        return self.supervisor.routes.get(dnn)

    @property
    def common(self) -> int:
        """The process that serves all of them."""
        (key,) = set(self.supervisor.routes.values())
        assert len(self.supervisor.routes) == len(self.dnns)
        return key

    def phase(self, key: int) -> Phase:
        return self.supervisor.members[key].phase
