"""What to do after which event of an engine process: restart, standby, blame, merging back.

Decisions only. :class:`Supervisor` takes events and a clock and returns actions; it starts no process and reads no
board, so that every order of events can be tested. After each event it compares what there is with what there should
be (:meth:`Supervisor._reconcile`): a group of DNNs has a process, or one that is being prepared, or a time of the next
try. A group may be lost again at any moment in between without a special case.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from multi_dnn_ros.serving.groups import (
    Action,
    Backoff,
    Begin,
    Configure,
    Disable,
    Enable,
    Finish,
    Group,
    Kill,
    Limits,
    Loss,
    Member,
    Phase,
    Say,
    Spare,
    Spawn,
)

#: A healed DNN waits for others that are about to heal, so that all are merged at once: this part of fault_window_s.
_MERGE_TOGETHER = 0.25
#: A standby that did not fit into memory is not tried again before.
_MEMORY_PAUSE_NS = 60_000_000_000
_EARLY = (Phase.STARTING, Phase.READY)  # not bound to DNNs yet
_FAULT_PHASES = (Phase.SERVING, Phase.STOPPING)


class Supervisor:
    """Not thread-safe. Every method that takes an event returns what is to be done, in this order.

    device: for messages. dnns: of the device. standby: none, warm or hot. clock: nanoseconds, monotonic.
    `routes` tells which process serves which DNN, and holds once the actions are done.
    """

    def __init__(
        self, device: str, dnns: Sequence[str], limits: Limits, standby: str, clock: Callable[[], int]
    ) -> None:
        self.device = device
        self.limits = limits
        self.active = False
        self.members: dict[int, Member] = {}
        self.routes: dict[str, int] = {}
        self.standby = Spare(Backoff(limits.restart_s))
        self.merging = Spare(Backoff(limits.retry_s))
        self.merged: tuple[str, ...] = ()  # what the process in the making by `merging` is for
        self.groups = [self._group(tuple(dnns))]
        self._dnns = tuple(dnns)
        self._window_ns = round(limits.fault_window_s * 1e9)
        self._standby_mode = standby
        self._clock = clock
        self._keys = itertools.count(1)
        self._actions: list[Action] = []

    # -- events

    def adopt(self) -> int:
        """The key of a process that was configured with all DNNs before supervision began."""
        key = self._new_member(Phase.CONFIGURED, self._dnns)
        self.groups[0].process = key
        return key

    def activate(self) -> list[Action]:
        """Frames come from now on."""
        self.active = True
        for group in self.groups:
            if group.loss is not None and group.loss.gap_ms is None:  # while inactive nobody missed it
                group.loss = replace(group.loss, at_ns=self._clock(), answer_ns=None)
            if group.process is not None and self.members[group.process].phase is Phase.CONFIGURED:
                self._begin(group)
        return self._reconcile()

    def deactivate(self) -> list[Action]:
        """No more frames come; those under way are to be finished."""
        self.active = False
        self.routes.clear()
        for member in self.members.values():
            if member.phase is Phase.SERVING:
                self._set(member, Phase.STOPPING)
                self._actions.append(Finish(member.key))
        return self._reconcile()

    def tick(self) -> list[Action]:
        """Time has passed."""
        return self._reconcile()

    def ready(self, key: int) -> list[Action]:
        """Its imports are done."""
        member = self._live(key)
        if member is not None and member.phase is Phase.STARTING:
            self._set(member, Phase.READY)
        return self._reconcile()

    def configured(self, key: int) -> list[Action]:
        """It can serve."""
        member = self._live(key)
        if member is not None and member.phase is Phase.CONFIGURING:
            self._set(member, Phase.CONFIGURED)
            if key == self.standby.key:
                self.standby.reason = ""
        return self._reconcile()

    def refused(self, key: int, text: str, *, memory: bool = False) -> list[Action]:
        """It could not be configured, and said why. memory: for want of it."""
        member = self._live(key)
        if member is not None:
            self._kill(member, "it could not be configured")
            self._gone(member, text, (), None, Phase.CONFIGURING, refused=True, memory=memory)
        return self._reconcile()

    def answered(self, key: int, at_ns: int) -> list[Action]:
        """Its first answer since it serves."""
        for group in self.groups:
            loss = group.loss
            if loss is not None and loss.gap_ms is None and any(self.routes.get(dnn) == key for dnn in group.dnns):
                group.loss = replace(loss, gap_ms=(at_ns - loss.begun_ns) / 1e6)
                self._say(
                    logging.WARNING,
                    f"{self.name(group)} serves {_names(group.dnns)} again after {group.loss.gap_ms:.0f} ms "
                    f"(restarts: {group.restarts})",
                )
        return self._reconcile()

    def stopped(self, key: int, hanging: Sequence[str] = ()) -> list[Action]:
        """Its frames are finished."""
        member = self._live(key)
        if member is not None and member.phase is Phase.LEAVING:
            self._kill(member, "it is not needed any more")
        elif member is not None and member.phase is Phase.STOPPING:
            if hanging:
                return self.condemn(key, f"threads did not end when it stopped: {', '.join(hanging)}")
            self._set(member, Phase.CONFIGURED)
        return self._reconcile()

    def condemn(
        self, key: int, cause: str, under_way: Iterable[str] = (), answer_ns: int | None = None
    ) -> list[Action]:
        """It hangs: it is killed, and replaced without waiting for its end. Arguments: as of :meth:`ended`."""
        member = self._live(key)
        if member is not None:
            phase = member.phase
            self._kill(member, cause)
            self._gone(member, cause, tuple(under_way), answer_ns, phase)
        return self._reconcile()

    def ended(self, key: int, cause: str, under_way: Iterable[str] = (), answer_ns: int | None = None) -> list[Action]:
        """It was reaped. under_way: DNNs whose job was running. answer_ns: of its last answer; None: it gave none."""
        member = self.members.pop(key, None)
        if member is not None and member.phase is not Phase.KILLED:
            self._gone(member, cause, tuple(under_way), answer_ns, member.phase)
        return self._reconcile()

    # -- questions

    def name(self, group: Group) -> str:
        """As in diagnostics."""
        return f"engine {self.device}" + (f" {group.dnns[0]}" if group.own else "")

    def why_not(self, dnn: str) -> tuple[bool, str]:
        """Of a DNN without a route: whether it is disabled, and the reason in words."""
        group = self._home(dnn)
        if group.disabled is not None:
            return True, group.disabled
        cause = f" ({group.loss.cause})" if group.loss is not None else ""
        return False, f"no engine process serves the DNN at this moment{cause}"

    def standby_state(self) -> str:
        """In words, for diagnostics."""
        if self._standby_mode == "none":
            return "none (parameter standby)"
        if self.standby.key is None:
            reason = f": {self.standby.reason}" if self.standby.reason else ""
            return f"none at this moment{reason}"
        phase = self.members[self.standby.key].phase
        done = Phase.CONFIGURED if self._standby_mode == "hot" else Phase.READY
        return f"{self._standby_mode}, {'ready' if phase is done else 'making'}"

    # -- what became of a process

    def _gone(
        self,
        member: Member,
        cause: str,
        under_way: tuple[str, ...],
        answer_ns: int | None,
        phase: Phase,
        *,
        refused: bool = False,
        memory: bool = False,
    ) -> None:
        """Whatever it was for has no process now. phase: that it was in."""
        key, now = member.key, self._clock()
        lost = [dnn for dnn, route in self.routes.items() if route == key]
        for dnn in lost:
            del self.routes[dnn]
        if key == self.standby.key:
            self.standby.used(now, self._window_ns)
            self.standby.reason = cause
            if memory:
                self.standby.next_try_ns = now + _MEMORY_PAUSE_NS
            self._say(logging.WARNING, f"engine {self.device}: the standby was lost: {cause}")
        elif key == self.merging.key:
            self.merging.used(now, self._window_ns)
            self._say(logging.WARNING, f"engine {self.device}: the DNNs stay in their own processes: {cause}")
        for group in self.groups:
            if group.coming == key:
                group.coming = None
                self._not_restored(group, cause, refused or phase in _EARLY)
                return
            if group.process == key:
                group.process = None
                worked = phase in _FAULT_PHASES and (answer_ns is not None or bool(under_way))
                self._lost(group, cause, under_way, answer_ns, worked)
                return

    def _lost(self, group: Group, cause: str, under_way: tuple[str, ...], answer_ns: int | None, worked: bool) -> None:
        """A group has lost its process. worked: it served, so that one of its DNNs may be the cause."""
        now = self._clock()
        self._cancel_merge()
        sheltered = [other for other in self.groups if other.sheltered] if not group.own else []
        for one in (group, *sheltered):
            one.sheltered = False
            open_ = one.loss if one.loss is not None and one.loss.gap_ms is None else Loss(cause, now, answer_ns)
            one.loss = replace(open_, cause=cause)
        if group.served_since_ns is not None and now - group.served_since_ns >= self._window_ns:
            group.restart.reset()
            group.tries.reset()
        group.served_since_ns = None
        computing = f" while computing {_names(under_way)}" if under_way else ""
        self._say(logging.ERROR, f"{self.name(group)} was lost{computing}: {cause}")
        accused = [dnn for dnn in group.dnns if not under_way or dnn in under_way]
        if not worked:  # no sign against a DNN, but no reason to hurry either
            self._pause(group)
        elif group.own:
            self._disable(group, cause)
        elif not self._is_repeated(group) or not accused:
            self._pause(group)
        elif len(group.dnns) == 1 and not sheltered:
            self._disable(group, cause)
        else:
            self._split(group, accused)

    def _not_restored(self, group: Group, cause: str, refused: bool) -> None:
        """The process that was prepared for a group is gone. refused: it told why it cannot be configured."""
        if group.loss is not None and group.loss.gap_ms is None:
            group.loss = replace(group.loss, cause=cause)
        self._say(logging.ERROR, f"{self.name(group)}: preparing a process for {_names(group.dnns)} failed: {cause}")
        if refused or group.sheltered:
            self._pause(group)
        elif group.own:
            self._disable(group, cause)
        elif self._is_repeated(group) and len(group.dnns) > 1:
            self._split(group, list(group.dnns))
        else:
            self._pause(group)

    def _is_repeated(self, group: Group) -> bool:
        """Note a fault; whether there was another one within the window."""
        now = self._clock()
        group.faults = [at for at in group.faults if now - at < self._window_ns] + [now]
        return len(group.faults) > 1

    def _pause(self, group: Group) -> None:
        group.next_try_ns = self._clock() + group.restart.failed()

    def _disable(self, group: Group, cause: str) -> None:
        """The only DNN of a group is guilty."""
        pause_ns = group.tries.failed()
        group.own = True
        group.next_try_ns = self._clock() + pause_ns
        group.disabled = f"disabled, as its engine process was lost: {cause}; next try in {pause_ns / 1e9:g} s"
        self._actions.append(Disable(group.dnns[0], group.disabled))

    def _split(self, group: Group, accused: Sequence[str]) -> None:
        """DNNs under suspicion get processes of their own. A hot standby serves all of them until these are ready."""
        now = self._clock()
        shelter = self._configured_standby(group.dnns)
        group.dnns = tuple(dnn for dnn in group.dnns if dnn not in accused)
        group.next_try_ns = now
        for dnn in accused:
            single = self._group((dnn,))
            single.own, single.sheltered, single.next_try_ns = True, shelter is not None, now
            single.loss = group.loss
            self.groups.append(single)
        self._say(
            logging.WARNING,
            f"engine {self.device}: {_names(accused)} under suspicion after {len(group.faults)} faults within "
            f"{self.limits.fault_window_s:g} s (parameter fault_window_s): engine processes of their own",
        )
        if shelter is not None:
            self.standby.used(now, self._window_ns)
            self._install(group, shelter)

    # -- from what there is to what there should be

    def _reconcile(self) -> list[Action]:
        for group in list(self.groups):
            self._restore(group)
        self._merge_back()
        self._keep_standby()
        self._end_unused()
        actions, self._actions = self._actions, []
        return actions

    def _restore(self, group: Group) -> None:
        now = self._clock()
        if not group.dnns:
            return
        if group.process is None and group.coming is None:
            standby = None if group.own else self._configured_standby(group.dnns)
            if standby is not None:  # ready: no pause is needed
                self.standby.used(now, self._window_ns)
                self._install(group, standby)
                return
            if now < group.next_try_ns:
                return
            if group.disabled is not None:
                group.disabled = None
                self._actions.append(Enable(group.dnns[0]))
                self._say(logging.INFO, f"DNN {group.dnns[0]} is tried again in an engine process of its own")
            group.coming = self._obtain(group)
        if group.coming is not None:
            member = self.members[group.coming]
            self._configure(member, group.dnns, in_background=group.sheltered)
            if member.phase is Phase.CONFIGURED:
                self._install(group, member.key)

    def _obtain(self, group: Group) -> int:
        """A process for a group: the standby, as far as it is, or a new one."""
        standby = self._standby_member()
        usable = standby is not None and (standby.phase in _EARLY or (standby.covers(group.dnns) and not group.own))
        if standby is not None and usable and not group.tries.count:  # a DNN on trial does not take it from others
            self.standby.used(self._clock(), self._window_ns)
            return standby.key
        return self._spawn()

    def _configure(self, member: Member, dnns: tuple[str, ...], *, in_background: bool) -> None:
        if member.phase is Phase.READY:
            member.dnns = dnns
            self._set(member, Phase.CONFIGURING)
            self._actions.append(Configure(member.key, dnns, in_background))

    def _install(self, group: Group, key: int) -> None:
        """A configured process is the group's from now on."""
        group.process, group.coming = key, None
        if group.loss is not None and group.loss.gap_ms is None:
            group.restarts += 1
        if self.active:
            self._begin(group)

    def _begin(self, group: Group) -> None:
        assert group.process is not None
        self._set(self.members[group.process], Phase.SERVING)
        self._actions.append(Begin(group.process))
        group.served_since_ns = self._clock()
        if group.own:
            group.sheltered = False
        sheltered = [] if group.own else [dnn for other in self.groups if other.sheltered for dnn in other.dnns]
        for dnn in (*group.dnns, *sheltered):
            self.routes[dnn] = group.process

    # -- merging back

    def _merge_back(self) -> None:
        """DNNs that served long enough in processes of their own come back into one with the others."""
        now = self._clock()
        if self.merging.key is not None:
            member = self.members[self.merging.key]
            self._configure(member, self.merged, in_background=True)
            if member.phase is Phase.CONFIGURED:
                self._merge(member.key)
            return
        served = [
            (group, now - group.served_since_ns)
            for group in self.groups
            if group.own and group.served_since_ns is not None and self._serves(group)
        ]
        healed = [group for group, served_ns in served if served_ns >= self._window_ns]
        soon = any((1 - _MERGE_TOGETHER) * self._window_ns <= served_ns < self._window_ns for _, served_ns in served)
        common = self._common()
        if not healed or soon or (common is not None and not self._serves(common)):
            return
        if any(group.sheltered for group in self.groups):
            return
        if common is None and len(healed) == 1:
            healed[0].own = False
            healed[0].tries.reset()
            return
        names = {dnn for group in healed for dnn in group.dnns} | set(common.dnns if common else ())
        self.merged = tuple(dnn for dnn in self._dnns if dnn in names)
        holder = None if common is None or common.process is None else self.members[common.process]
        if holder is not None and holder.covers(self.merged):  # it was the standby for all of them
            self._merge(holder.key)
            return
        if now < self.merging.next_try_ns:
            return
        standby = self._standby_member()
        if standby is not None and (standby.covers(self.merged) or standby.phase in _EARLY):
            self.standby.used(now, self._window_ns)
            self.merging.key = standby.key
        else:
            self._drop_standby("its memory is needed for merging the DNNs back")
            self.merging.key = self._spawn()
        self._say(logging.INFO, f"engine {self.device}: preparing one process for {_names(self.merged)}")

    def _merge(self, key: int) -> None:
        """A process serves the DNNs of several groups from now on."""
        self.merging.key = None
        self.merging.restart.reset()
        common = self._common()
        if common is None:
            common = self._group(())
            self.groups.insert(0, common)
        self.groups = [group for group in self.groups if group is common or not set(group.dnns) <= set(self.merged)]
        common.dnns = self.merged
        common.faults = []
        if common.process == key:
            for dnn in self.merged:
                self.routes[dnn] = key
        else:
            common.coming = None
            self._install(common, key)
        self._say(logging.INFO, f"engine {self.device}: {_names(self.merged)} are served by one process again")

    def _cancel_merge(self) -> None:
        if self.merging.key is not None:
            self._kill(self.members[self.merging.key], "a group was lost meanwhile")
            self.merging.used(self._clock(), self._window_ns)

    # -- standby

    def _keep_standby(self) -> None:
        if self._standby_mode == "none":
            return
        common = self._common()
        member = self._standby_member()
        if member is None:
            busy = self.merging.key is not None or any(group.coming is not None for group in self.groups)
            if common is None or common.process is None or busy or self._clock() < self.standby.next_try_ns:
                return
            self.standby.key = self._spawn()
        elif self._standby_mode == "hot":
            if common is None:  # there is nobody to replace
                return
            self._configure(member, self._standby_dnns(), in_background=True)
            if member.dnns and not member.covers(common.dnns):
                self._drop_standby("it holds other DNNs than it has to replace")
        elif member.phase is Phase.READY:
            self.standby.reason = ""

    def _standby_dnns(self) -> tuple[str, ...]:
        """All that were never disabled: those under suspicion come back if they are innocent."""
        return tuple(dnn for dnn in self._dnns if not (home := self._home(dnn)).own or not home.tries.count)

    def _standby_member(self) -> Member | None:
        return None if self.standby.key is None else self.members[self.standby.key]

    def _configured_standby(self, dnns: Iterable[str]) -> int | None:
        """The standby, if it can serve these DNNs at once."""
        member = self._standby_member()
        return member.key if member is not None and member.phase is Phase.CONFIGURED and member.covers(dnns) else None

    def _drop_standby(self, cause: str) -> None:
        member = self._standby_member()
        if member is not None:
            self._kill(member, cause)
            self.standby.key = None

    # -- processes

    def _end_unused(self) -> None:
        if not any(group.sheltered for group in self.groups):
            self.groups = [group for group in self.groups if group.dnns]
        used = {self.standby.key, self.merging.key}
        used.update(key for group in self.groups for key in (group.process, group.coming))
        for member in self.members.values():
            if member.key in used or member.phase in (Phase.LEAVING, Phase.KILLED):
                continue
            if member.phase in _FAULT_PHASES:
                if member.phase is Phase.SERVING:
                    self._actions.append(Finish(member.key))
                self._set(member, Phase.LEAVING)
            else:
                self._kill(member, "it is not needed any more")

    def _spawn(self) -> int:
        key = self._new_member(Phase.STARTING)
        self._actions.append(Spawn(key))
        return key

    def _new_member(self, phase: Phase, dnns: tuple[str, ...] = ()) -> int:
        key = next(self._keys)
        self.members[key] = Member(key, phase, self._clock(), dnns)
        return key

    def _kill(self, member: Member, cause: str) -> None:
        self._set(member, Phase.KILLED)
        self._actions.append(Kill(member.key, cause))

    def _set(self, member: Member, phase: Phase) -> None:
        member.phase, member.since_ns = phase, self._clock()

    def _live(self, key: int) -> Member | None:
        member = self.members.get(key)
        return None if member is None or member.phase is Phase.KILLED else member

    # -- groups

    def _group(self, dnns: tuple[str, ...]) -> Group:
        return Group(dnns, Backoff(self.limits.restart_s), Backoff(self.limits.retry_s))

    def _home(self, dnn: str) -> Group:
        return next(group for group in self.groups if dnn in group.dnns)

    def _common(self) -> Group | None:
        """The group of those that are not under suspicion."""
        return next((group for group in self.groups if not group.own), None)

    def _serves(self, group: Group) -> bool:
        return group.process is not None and self.members[group.process].phase is Phase.SERVING

    def _say(self, level: int, text: str) -> None:
        self._actions.append(Say(level, text))


def _names(dnns: Iterable[str]) -> str:
    return ", ".join(dnns)
