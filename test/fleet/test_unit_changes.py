"""Units that are lost and ranks that fail at inconvenient moments, with simulated ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from fleet_run import all_train, run_watched
from simulated_launcher import SimulatedLauncher, SimulatedRank

from multi_dnn_ros.fleet.job_processes import JobProcesses, stop_jobs
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.launcher import RankHandle, RankMain
from multi_dnn_ros.fleet.messages import Busy, Command, Ended, Failed, Report
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
#: Turns of a fiftieth of a second after which a test gives up.
_TURNS = 1500


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated ranks have no message that would end a turn of the supervisor before its tenth of a second."""
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._TICK_S", 0.02)


def write(path: Path, *jobs: FleetJob, period_s: float = 5.0) -> Path:
    content = [job.model_dump(mode="json", exclude_defaults=True) for job in jobs]
    path.write_text(yaml.safe_dump({"period_s": period_s, "jobs": content}))
    return path


class Watch:
    """Collects lines, lets the test act after each turn, and ends the fleet when the test says so."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._turns = 0

    def __call__(self, supervisor: Supervisor, line: str) -> None:
        if line:
            self.lines.append(line)
            return
        self._turns += 1
        assert self._turns < _TURNS, self.lines
        if self.act(supervisor):
            raise KeyboardInterrupt

    def act(self, supervisor: Supervisor) -> bool:
        """Called after each turn; True ends the fleet."""
        raise NotImplementedError


def test_a_unit_that_is_lost_while_another_job_fails_takes_its_job_along(job: FleetJob, tmp_path: Path) -> None:
    """The job on the lost unit continues from its checkpoint, because its rank cannot pass the state on."""
    launcher = SimulatedLauncher(UNITS)

    class Events(Watch):
        """One job per unit; the one on unit 0 fails, and meanwhile unit 1 is lost."""

        other = ""

        def act(self, supervisor: Supervisor) -> bool:
            jobs = supervisor.jobs
            if self.other:
                return jobs[self.other].starts == 2 and jobs[self.other].placed
            if all_train(supervisor):
                first, second = sorted(jobs, key=lambda name: -jobs[name].shares[0])
                assert (jobs[first].shares, jobs[second].shares) == ((10, 0), (0, 10))
                self.other = second
                launcher.ranks[first, 0].fail("crashed", lambda: launcher.change(1, False, "unit 1 was lost"))
            return False

    events = Events()
    supervisor = run_watched(write(tmp_path / "jobs.yaml", job, job.model_copy(update={"name": "b"})), launcher, events)
    assert f"{events.other}: continues from the last checkpoint without unit 1 (cpu:1)" in events.lines
    assert supervisor.jobs[events.other].attempts == 0


@pytest.mark.parametrize("since", ["the last command", "an earlier command"])
def test_a_unit_that_is_lost_before_its_rank_has_passed_the_state_on_takes_its_job_along(
    since: str, job: FleetJob, tmp_path: Path
) -> None:
    """Its rank has no share any more, but the ranks that join wait for the state of the job."""
    launcher = SimulatedLauncher(UNITS)

    class Events(Watch):
        former = -1

        def act(self, supervisor: Supervisor) -> bool:
            each = supervisor.jobs["a"]
            if self.former < 0 and each.placed and each.is_current and each.processes is not None:
                self.former = each.shares.index(10)
                new = 1 - self.former
                launcher.ranks["a", new].busy = Busy(f"starting on unit {new}", 600.0, "join_limit_s")
                for _ in range(1 if since == "the last command" else 3):
                    each.processes.send(tuple(each.shares[::-1]) if each.shares[self.former] else each.shares)
                launcher.change(self.former, False, f"unit {self.former} was lost")
            return each.starts == 2 and each.placed

    events = Events()
    supervisor = run_watched(write(tmp_path / "jobs.yaml", job), launcher, events)
    lost = f"a: continues from the last checkpoint without unit {events.former} (cpu:1)"
    assert lost in events.lines
    assert supervisor.jobs["a"].attempts == 0


def test_a_unit_that_is_lost_after_its_rank_has_passed_the_state_on_does_not_stop_its_job(
    job: FleetJob, tmp_path: Path
) -> None:
    launcher = SimulatedLauncher(UNITS)

    class Events(Watch):
        moved = ""

        def act(self, supervisor: Supervisor) -> bool:
            each = supervisor.jobs["a"]
            if not (each.placed and each.is_current and each.processes is not None):
                return False
            if not self.moved:
                former = each.shares.index(10)
                self.moved = f"unit {former} was lost"
                each.processes.send(tuple(each.shares[::-1]))
            elif self.moved not in self.lines:
                launcher.change(each.shares.index(0), False, self.moved)
            else:
                return True
            return False

    supervisor = run_watched(write(tmp_path / "jobs.yaml", job, period_s=60.0), launcher, Events())
    assert supervisor.jobs["a"].starts == 1


def test_a_lost_unit_that_is_refused_again_interrupts_no_measurement(job: FleetJob, tmp_path: Path) -> None:
    launcher = SimulatedLauncher(UNITS, usable=[True, False])

    class Events(Watch):
        reported = False

        def act(self, supervisor: Supervisor) -> bool:
            if supervisor.measuring is not None and not self.reported:
                self.reported = True
                launcher.change(1, False, "unit 1 cannot be used again: another version")
            return supervisor.jobs["a"].placed

    events = Events()
    supervisor = run_watched(write(tmp_path / "jobs.yaml", job), launcher, events)
    assert "unit 1 cannot be used again: another version" in events.lines
    assert supervisor.jobs["a"].starts == 1


def test_the_policy_of_the_start_is_kept(job: FleetJob, tmp_path: Path) -> None:
    """A changed policy in the file does not come into force when a unit is lost either."""
    launcher = SimulatedLauncher(UNITS)
    path = write(tmp_path / "jobs.yaml", job)

    class Events(Watch):
        step = 0

        def act(self, supervisor: Supervisor) -> bool:
            if self.step == 0 and supervisor.jobs["a"].placed:
                path.write_text("policy: even\n" + path.read_text())
                self.step = 1
            elif self.step == 1 and supervisor.figures()["jobs_file"]["policy"] == "even":
                launcher.change(1, False, "unit 1 was lost")
                self.step = 2
            return self.step == 2 and "unit 1 was lost" in self.lines and supervisor.jobs["a"].placed

    supervisor = run_watched(path, launcher, Events())
    assert supervisor.decisions.policy == "fair"


def test_the_report_has_slow_downs_without_priorities(job: FleetJob, tmp_path: Path) -> None:
    jobs = job.model_copy(update={"priority": 8.0}), job.model_copy(update={"name": "b"})

    class Events(Watch):
        def act(self, supervisor: Supervisor) -> bool:
            return bool(supervisor.decisions.entries) and len(supervisor.decisions.entries[-1]["slow_downs"]) == 2

    launcher = SimulatedLauncher(UNITS)
    path = write(tmp_path / "jobs.yaml", *jobs, period_s=1.0)
    supervisor = run_watched(path, launcher, Events())
    recorded = supervisor.decisions.entries[-1]["slow_downs"]
    for name, each in supervisor.jobs.items():
        assert each.progress is not None
        assert recorded[name] == pytest.approx(each.progress.slow_down, rel=0.5)


def test_a_measurement_that_fails_is_repeated(job: FleetJob, tmp_path: Path) -> None:
    """The job was measured on one unit, but not yet on both: the time on one unit is not the result."""
    launcher = SimulatedLauncher(UNITS)

    class Events(Watch):
        failed = False

        def act(self, supervisor: Supervisor) -> bool:
            if supervisor.measuring is not None and supervisor.jobs["a"].state.alone_s and not self.failed:
                self.failed = True
                launcher.ranks["a", 0].fail("crashed", lambda: None)
            return supervisor.jobs["a"].placed

    events = Events()
    run_watched(write(tmp_path / "jobs.yaml", job), launcher, events)
    assert events.failed
    assert events.lines.count("a: started; measured alone") == 2


def test_a_start_that_fails_before_its_first_report_is_no_progress(job: FleetJob, tmp_path: Path) -> None:
    """The second start fails at once; the third one comes as far as the first one. Then the job is given up."""
    launcher = SimulatedLauncher(UNITS)
    failed: list[int] = []

    class Events(Watch):
        def act(self, supervisor: Supervisor) -> bool:
            each = supervisor.jobs["a"]
            trains = each.placed and each.is_current
            if each.processes is not None and each.starts not in failed and (trains or each.starts == 2):
                failed.append(each.starts)
                for unit in range(len(UNITS)):  # it would begin with one of them
                    launcher.ranks["a", unit].fail("crashed", lambda: None)
            return each.has_ended or len(failed) > 3

    path = write(tmp_path / "jobs.yaml", job)
    supervisor = run_watched(path, launcher, Events())
    assert supervisor.jobs["a"].state.status == "failed"
    assert failed == [1, 2, 3]


def test_a_job_that_finishes_while_it_is_measured_has_no_slow_down(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its running time was not counted: a slow-down of 0 would be shown."""
    launcher = SimulatedLauncher(UNITS)
    done: list[int] = []

    class Events(Watch):
        def act(self, supervisor: Supervisor) -> bool:
            each = supervisor.jobs["a"]
            if supervisor.measuring is not None and each.state.alone_s and not done:
                done.append(1)
                rank = launcher.ranks["a", each.shares.index(max(each.shares))]
                rank.put(Report(each.processes.number if each.processes else 0, 3, 3, 2, 0.1, 0.3))
                rank.put(Ended(True, 3, (0.5, 0.4, 0.3)))
            return False

    supervisor = Supervisor(write(tmp_path / "jobs.yaml", job), launcher, tmp_path / "runs", watch=Events())
    assert supervisor.run()
    (found,) = supervisor.figures()["jobs"]
    assert (found["status"], found["slow_down"]) == ("finished", None)


def test_a_rank_that_was_killed_is_named_instead_of_its_peer(job: FleetJob, tmp_path: Path) -> None:
    """The peer fails at once, as its connection is closed; the exit code of the killed rank is known after a second."""
    launcher = SimulatedLauncher(UNITS)

    class Events(Watch):
        failed = False

        def act(self, supervisor: Supervisor) -> bool:
            if supervisor.jobs["a"].placed and not self.failed:
                self.failed = True
                peer, killed = launcher.ranks["a", 0], launcher.ranks["a", 1]
                peer.fail("connection closed by peer", lambda: killed.end_later("was killed by SIGKILL", 50))
            return supervisor.jobs["a"].starts == 2

    events = Events()
    run_watched(write(tmp_path / "jobs.yaml", job), launcher, events)
    assert "a: unit 1 (cpu:1) was killed by SIGKILL; starting again from the last checkpoint" in events.lines


def test_a_rank_without_a_share_that_is_killed_starts_again_alone(job: FleetJob, tmp_path: Path) -> None:
    """Twice; then the job does without its unit."""
    launcher = SimulatedLauncher(UNITS)
    failed: list[SimulatedRank] = []

    class Events(Watch):
        def act(self, supervisor: Supervisor) -> bool:
            each = supervisor.jobs["a"]
            if each.placed and each.is_current:
                rank = launcher.ranks["a", each.shares.index(0)]
                if rank in failed:
                    return len(failed) == 3
                failed.append(rank)
                rank.fail("was killed by SIGKILL", lambda: None)
            return False

    events = Events()
    path = write(tmp_path / "jobs.yaml", job, period_s=60.0)
    supervisor = run_watched(path, launcher, events)
    ends = [line.partition("; ")[2] for line in events.lines if "was killed by SIGKILL" in line]
    again = "this process starts again, and the job continues without it"
    assert ends == [again, again, "the job continues without this unit"]
    assert supervisor.jobs["a"].starts == 1


def test_a_job_whose_checkpoint_has_all_steps_reports_them(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the command was killed while the trained network was scored: the rank ends without a further step."""
    losses = (0.5, 0.4, 0.3)

    def finish(rank: SimulatedRank, command: Command) -> None:
        if command.active and command.active[0] == rank.unit:
            rank.put(Ended(True, len(losses), losses))

    monkeypatch.setattr(SimulatedRank, "send", finish)
    supervisor = Supervisor(write(tmp_path / "jobs.yaml", job), SimulatedLauncher(UNITS), tmp_path / "runs")
    assert supervisor.run()
    (found,) = supervisor.figures()["jobs"]
    assert (found["status"], found["steps"], found["losses"]) == ("finished", 3, list(losses))


def test_jobs_are_stopped_at_the_same_time(job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank answers the command to stop only when the ranks of all jobs have it."""
    stopping: list[tuple[SimulatedRank, Command]] = []
    stopping_at_kill: list[int] = []
    send = SimulatedRank.send

    def send_late(rank: SimulatedRank, command: Command) -> None:
        if not command.stop:
            send(rank, command)
        elif command.active[0] == rank.unit:
            stopping.append((rank, command))
            if len(stopping) == 2:
                for each in stopping:
                    send(*each)

    monkeypatch.setattr(SimulatedRank, "send", send_late)
    monkeypatch.setattr(SimulatedRank, "kill", lambda rank: stopping_at_kill.append(len(stopping)))
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._STOP_S", 5.0)

    class Events(Watch):
        def act(self, supervisor: Supervisor) -> bool:
            return all(each.placed for each in supervisor.jobs.values())

    jobs = job, job.model_copy(update={"name": "b"})
    launcher = SimulatedLauncher(UNITS)
    supervisor = run_watched(write(tmp_path / "jobs.yaml", *jobs), launcher, Events())
    assert stopping_at_kill == [2] * 4  # two ranks of each job
    assert all(each.state.status == "waiting" for each in supervisor.jobs.values())


@pytest.mark.parametrize("answer", [Failed("disk is full", False, True), None])
def test_a_job_that_is_stopped_without_a_checkpoint_is_named(
    answer: Failed | None, job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rank fails, or does not answer. Job `b` writes its checkpoint."""
    launcher = SimulatedLauncher(UNITS)
    send = SimulatedRank.send

    def refuse(rank: SimulatedRank, command: Command) -> None:
        if not command.stop or rank is not launcher.ranks["a", rank.unit]:
            send(rank, command)
        elif answer is not None and command.active[0] == rank.unit:
            rank.put(answer)

    monkeypatch.setattr(SimulatedRank, "send", refuse)
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._STOP_S", 0.3)

    class Events(Watch):
        def act(self, supervisor: Supervisor) -> bool:
            return all(each.placed for each in supervisor.jobs.values())

    events = Events()
    jobs = job, job.model_copy(update={"name": "b"})
    run_watched(write(tmp_path / "jobs.yaml", *jobs), launcher, events)
    named = [line for line in events.lines if "without a checkpoint" in line]
    reason = answer.text if answer is not None else "no answer within 0.3 s"
    assert named == [f"a: stopped without a checkpoint; it will continue from the last one ({reason})"]


def test_a_stop_that_is_interrupted_kills_all_ranks(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a second Ctrl-C."""
    killed: list[SimulatedRank] = []
    launcher = SimulatedLauncher(UNITS)

    def interrupt(jobs: object, timeout_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatedRank, "kill", lambda rank: killed.append(rank))
    processes = JobProcesses(job, launcher, tmp_path, "a")
    processes.send((5, 5))
    monkeypatch.setattr("multi_dnn_ros.fleet.job_processes.wait_for_messages", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stop_jobs([processes], 5.0, 5.0)
    assert killed == list(launcher.ranks.values())


def test_a_rank_that_was_to_join_does_not_delay_the_end_of_its_job(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a rank that has ended, and the supervisor makes no decisions while it waits for a rank."""
    calls: list[tuple[str, int]] = []

    def send(rank: SimulatedRank, command: Command) -> None:
        if command.active[:1] == (rank.unit,):
            rank.put(Ended(True, 3, (0.5, 0.4, 0.3)))

    monkeypatch.setattr(SimulatedRank, "send", send)
    monkeypatch.setattr(SimulatedRank, "kill", lambda rank: calls.append(("kill", rank.unit)))
    monkeypatch.setattr(SimulatedRank, "join", lambda rank, timeout_s: calls.append(("join", rank.unit)))
    launcher = SimulatedLauncher(UNITS)
    assert Supervisor(write(tmp_path / "jobs.yaml", job), launcher, tmp_path / "runs").run()
    assert calls.index(("kill", 1)) < calls.index(("join", 1))
    assert calls.index(("join", 0)) < calls.index(("kill", 0))


def test_a_rank_on_a_unit_that_has_returned_reads_the_data_before_it_has_a_share(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[int, Command]] = []
    send = SimulatedRank.send

    def record(rank: SimulatedRank, command: Command) -> None:
        commands.append((rank.unit, command))
        send(rank, command)

    monkeypatch.setattr(SimulatedRank, "send", record)
    launcher = SimulatedLauncher(UNITS, usable=(True, False))

    class Events(Watch):
        returned = False

        def act(self, supervisor: Supervisor) -> bool:
            if supervisor.jobs["a"].placed and not self.returned:
                self.returned = True
                launcher.change(1, True, "unit 1 has returned")
            return any(unit == 1 for unit, _ in commands)

    run_watched(write(tmp_path / "jobs.yaml", job), launcher, Events())
    first = next(command for unit, command in commands if unit == 1)
    assert first.prepare
    assert 1 not in first.active


def test_a_rank_without_a_share_that_fails_while_its_job_stops_does_not_cost_the_checkpoint(
    job: FleetJob, tmp_path: Path
) -> None:
    launcher = SimulatedLauncher(UNITS)
    processes = JobProcesses(job, launcher, tmp_path, "a")
    processes.send((10, 0))
    processes.receive()  # a report: the command is in force
    launcher.ranks["a", 1].fail("was killed by SIGKILL", lambda: None)
    first = launcher.ranks["a", 0]
    send = first.send
    answered: list[Command] = []

    def send_late(command: Command) -> None:
        """Write the checkpoint after the supervisor has received the failure."""

        def answer() -> None:
            answered.append(command)
            send(command)

        launcher.ranks["a", 1].failed = answer

    first.send = send_late  # type: ignore[method-assign]
    assert stop_jobs([processes], 5.0, 0.0) == {}
    assert len(answered) == 1


def test_a_rank_whose_unit_was_lost_is_not_started_again(job: FleetJob, tmp_path: Path) -> None:
    """Its end is known before the supervisor has handled the loss, which is noticed while another job fails."""
    launcher = SimulatedLauncher(UNITS)

    class Events(Watch):
        starts: list[str] | None = None

        def act(self, supervisor: Supervisor) -> bool:
            a, b = supervisor.jobs["a"], supervisor.jobs["b"]
            if self.starts is None and all(each.placed and each.is_current for each in (a, b)):
                assert (a.shares, b.shares) == ((10, 0), (0, 10))

                def lose() -> None:
                    launcher.change(0, False, "unit 0 was lost")
                    launcher.ranks["b", 0].put(Failed("ended with exit code 1", False, False))

                self.starts = list(launcher.prefixes[0])
                launcher.ranks["a", 0].fail("crashed", lose)
            return self.starts is not None and "unit 0 was lost" in self.lines

    events = Events()
    supervisor = run_watched(write(tmp_path / "jobs.yaml", job, job.model_copy(update={"name": "b"})), launcher, events)
    assert launcher.prefixes[0] == events.starts
    assert "b: unit 0 (cpu:1) ended with exit code 1; the job continues without this unit" in events.lines
    assert supervisor.jobs["b"].starts == 1


def test_a_job_that_has_lost_its_last_rank_starts_again_on_the_other_unit(job: FleetJob, tmp_path: Path) -> None:
    """Job `b` waits for the measurement of `a`. It does without unit 0 after three failures, and then loses unit 1."""
    launcher = SimulatedLauncher(UNITS)
    failed: list[SimulatedRank] = []

    class Events(Watch):
        def act(self, supervisor: Supervisor) -> bool:
            b = supervisor.jobs["b"]
            if not failed and supervisor.measuring is supervisor.jobs["a"]:
                launcher.ranks["a", 0].busy = Busy("starting on unit 0", 600.0, "join_limit_s")
            rank = launcher.ranks.get(("b", 0))
            if len(failed) < 3 and supervisor.measuring is not None and rank is not None and rank not in failed:
                failed.append(rank)
                rank.fail("was killed by SIGKILL", lambda: None)
            elif len(failed) == 3 and launcher.usable[1] and b.processes and not b.processes.has_rank(0):
                launcher.change(1, False, "unit 1 was lost")
            return b.placed

    events = Events()
    supervisor = run_watched(write(tmp_path / "jobs.yaml", job, job.model_copy(update={"name": "b"})), launcher, events)
    assert "b: continues from the last checkpoint without unit 1 (cpu:1)" in events.lines
    assert supervisor.jobs["b"].starts == 2
    assert supervisor.jobs["b"].attempts == 0


def test_the_units_that_are_late_at_the_start_of_a_job_are_named(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi_dnn_ros.fleet.report_timer.AWAITED_S", 0.1)

    class Launcher(SimulatedLauncher):
        def start(self, job: FleetJob, unit: int, folder: Path, prefix: str, rank_main: RankMain) -> RankHandle:
            rank = super().start(job, unit, folder, prefix, rank_main)
            if unit:
                rank.receive()  # the supervisor does not get the message that it has read the data
            return rank

    class Events(Watch):
        def act(self, supervisor: Supervisor) -> bool:
            return supervisor.jobs["a"].placed

    events = Events()
    launcher = Launcher((parse_unit("cpu:1"),) * 3)
    run_watched(write(tmp_path / "jobs.yaml", job), launcher, events)
    assert events.lines[0] == "a: started; measured alone; still reading the data: unit 1 (cpu:1), unit 2 (cpu:1)"
