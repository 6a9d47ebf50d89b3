"""Simulated engine processes, which execute the Supervisor's actions or end when the test says so."""

from __future__ import annotations

from multi_dnn_ros.serving.supervision.actions import (
    Action,
    ConfigureProcess,
    DisableDnn,
    EnableDnn,
    KillProcess,
    LogLine,
    StartProcess,
    StartServing,
    StopServing,
    TakeOver,
)
from multi_dnn_ros.serving.supervision.states import Phase, SupervisionTimes
from multi_dnn_ros.serving.supervision.supervisor import Supervisor

DNNS = ("lane", "object", "pedestrian")
TIMES = SupervisionTimes(fault_window_s=60.0)


class Simulation:
    """time_s: the clock. state: state of each process that was not reaped; determines its next step."""

    def __init__(self, standby: str = "none", dnns: tuple[str, ...] = DNNS, times: SupervisionTimes = TIMES) -> None:
        self.time_s = 1000.0
        self.supervisor = Supervisor("cpu", dnns, times, standby, lambda: round(self.time_s * 1e9))
        self.dnns = dnns
        self.state: dict[int, str] = {}
        self.configured_for: dict[int, tuple[str, ...]] = {}
        self.settings = dict.fromkeys(dnns, 0)  # number of committed changes
        self.settings_of: dict[int, dict[str, int]] = {}  # settings that each process was configured with
        self.changed: set[str] = set()  # DNNs of the latest swap
        self.has_result: set[int] = set()
        self.disabled: dict[str, str] = {}
        self.lines: list[tuple[int, str]] = []
        self.started: list[float] = []
        first = self.supervisor.add_configured()
        self.state[first], self.configured_for[first], self.settings_of[first] = "configured", dnns, dict(self.settings)
        self.do(self.supervisor.activate())

    def do(self, actions: list[Action]) -> None:
        """Execute actions as SupervisedProcesses does; an action that is impossible for a real process fails."""
        for action in actions:
            if isinstance(action, StartProcess):
                assert action.key not in self.state
                self.state[action.key] = "starting"
                self.started.append(self.time_s)
            elif isinstance(action, ConfigureProcess):
                assert self.state[action.key] == "ready"
                assert action.dnns
                self.state[action.key], self.configured_for[action.key] = "configuring", action.dnns
                self.settings_of[action.key] = {
                    dnn: number + (action.swap and dnn in self.changed) for dnn, number in self.settings.items()
                }
            elif isinstance(action, TakeOver):
                assert self.state[action.key] == "configured"
                assert self.state[action.previous] == "serving"
            elif isinstance(action, StartServing):
                assert self.state[action.key] == "configured"
                self.state[action.key] = "serving"
            elif isinstance(action, StopServing):
                assert self.state[action.key] == "serving"
                self.state[action.key] = "finishing"
            elif isinstance(action, KillProcess):
                assert self.state[action.key] != "killed"
                self.state[action.key] = "killed"
            elif isinstance(action, DisableDnn):
                assert action.dnn not in self.disabled
                self.disabled[action.dnn] = action.message
            elif isinstance(action, EnableDnn):
                del self.disabled[action.dnn]
            elif isinstance(action, LogLine):
                self.lines.append((action.level, action.text))
        self.check()

    def check(self) -> None:
        """Check the invariants."""
        supervisor = self.supervisor
        now_ns = round(self.time_s * 1e9)
        assert sorted(dnn for group in supervisor.groups for dnn in group.dnns) == sorted(self.dnns)
        for dnn, key in supervisor.routes.items():
            assert self.state[key] == "serving", f"{dnn} is routed to a process that is {self.state[key]}"
            assert dnn in self.configured_for[key]
            assert self.settings_of[key][dnn] == self.settings[dnn], f"{dnn} has previous settings"
            assert dnn not in self.disabled
        roles = [supervisor.standby.key, supervisor.merging.key, *supervisor.swapping.keys]
        for group in supervisor.groups:
            roles += [group.process, group.replacement]
            prepared = group.process is not None or group.replacement is not None
            assert not group.dnns or prepared or group.next_attempt_ns > now_ns, f"{group} is not restored"
            assert group.isolated <= (len(group.dnns) == 1)
            if group.disabled is not None:
                assert self.disabled[group.dnns[0]] == group.disabled
        assert len(self.disabled) == sum(group.disabled is not None for group in supervisor.groups)
        taken = [key for key in roles if key is not None]
        assert len(taken) == len(set(taken)), "a process with two roles"
        for key, state in self.state.items():
            assert key in taken or state in ("killed", "finishing"), f"process {key} ({state}) has no role"
        if supervisor.active:
            for group in supervisor.groups:
                if group.process is not None:
                    assert all(supervisor.routes[dnn] == group.process for dnn in group.dnns)

    # -- swaps

    def begin_swap(self, *dnns: str) -> None:
        self.changed = set(dnns)
        self.do(self.supervisor.begin_swap(dnns))

    def commit_swap(self) -> None:
        assert self.supervisor.swapping.is_prepared
        for dnn in self.changed:
            self.settings[dnn] += 1
        self.do(self.supervisor.commit_swap())

    # -- events

    def step(self, key: int) -> None:
        """Let a process do its next step."""
        state, supervisor = self.state[key], self.supervisor
        if state == "starting":
            self.state[key] = "ready"
            self.do(supervisor.ready(key))
        elif state == "configuring":
            self.state[key] = "configured"
            self.do(supervisor.configured(key))
        elif state == "serving" and key not in self.has_result:
            self.has_result.add(key)
            self.do(supervisor.first_result(key, round(self.time_s * 1e9)))
        elif state == "finishing":
            self.state[key] = "configured"
            self.do(supervisor.stopped(key))
        elif state == "killed":
            self.end(key, "killed")

    def end(self, key: int, cause: str = "killed by SIGSEGV", *running: str) -> None:
        """A process ends and is reaped. running: DNNs whose jobs were running."""
        del self.state[key]
        self.do(self.supervisor.ended(key, cause, running, self._last_result_ns(key)))

    def hang(self, key: int, *running: str) -> None:
        self.do(self.supervisor.failed(key, "no heartbeat", running, self._last_result_ns(key)))

    def refuse(self, key: int, *, out_of_memory: bool = False) -> None:
        if self.state[key] == "configuring":
            self.do(
                self.supervisor.refused(
                    key, "out of memory" if out_of_memory else "no such file", out_of_memory=out_of_memory
                )
            )

    def wait(self, seconds: float) -> None:
        """Let time pass in small steps, in which the processes work without faults."""
        until = self.time_s + seconds
        while self.time_s < until:
            self.time_s += min(0.5, until - self.time_s)
            for key in list(self.state):
                if key in self.state:
                    self.step(key)
            self.do(self.supervisor.tick())

    def _last_result_ns(self, key: int) -> int | None:
        return round(self.time_s * 1e9) - 1 if key in self.has_result else None

    # -- queries

    def serving(self, dnn: str) -> int | None:
        return self.supervisor.routes.get(dnn)

    @property
    def common(self) -> int:
        """Key of the process that serves all DNNs."""
        (key,) = set(self.supervisor.routes.values())
        assert len(self.supervisor.routes) == len(self.dnns)
        return key

    def phase(self, key: int) -> Phase:
        return self.supervisor.processes[key].phase
