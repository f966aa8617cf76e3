"""
Decides which gangs get resources for all their pods, and which get none.

A gang is *complete* when every role has its minimum of pods. Complete gangs take turns as Algorithm 1 of the thesis
orders pods: higher priority first, then the older one, then by name. A gang with bound pods goes before all others,
because no other gang can use their resources. Resources are reserved for all pods of a gang at once; while the first
gang does not fit, later gangs wait (or overtake, see :class:`Overtaking`). A gang that is not complete, or can never
fit, does not block others.

The reservations of a gang end together: when one of its pods is gone, the time is over, or kube-scheduler refuses a
node, all are given back, and the gang is decided again.

Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from dljob.core.placement.amounts import Amounts, fits, less, total
from dljob.core.primitives.backoff import wait_after
from dljob.kube.constraints.matching import at_best, may_run
from dljob.kube.constraints.requirements import NodeTraits
from dljob_gangs import placing, wording
from dljob_gangs.members import (
    Decision,
    GangName,
    Held,
    Member,
    Overtaking,
    Pair,
    Refusal,
    Rules,
    Stage,
    Standing,
    State,
    Verdict,
    World,
    tenant_of,
)
from dljob_gangs.placing import Ground, Placing
from dljob_gangs.wording import called

LONGEST_REFUSAL_S: Final = 120.0

Feasibility = Callable[[tuple[Member, ...], Mapping[str, NodeTraits]], Placing]
"""Places pods on the nodes as if these were empty."""


def could_fit(members: tuple[Member, ...], machines: Mapping[str, NodeTraits]) -> Placing:
    """Place pods on the nodes as if these were empty and healthy."""
    whole = {name: at_best(machine) for name, machine in machines.items()}
    free = {name: machine.allocatable for name, machine in whole.items()}
    return placing.place(members, Ground(whole, free, {}, ""))


def decide(
    world: World, state: State, *, now: float, rules: Rules, feasibility: Feasibility = could_fit
) -> Decision:
    state = give_back(world, state, now=now, rules=rules)
    desk = _Desk(world, state, now=now, rules=rules, feasibility=feasibility)
    turns = [gang for gang in sorted(world.gangs, key=desk.turn) if desk.is_ready(gang)]
    for gang in turns:
        desk.serve(gang)
    return Decision(desk.state(), desk.verdicts)


# --- what is given back ---------------------------------------------------------------------


def give_back(world: World, state: State, *, now: float, rules: Rules) -> State:
    """Return the reservations that are not used, expired, refused, or for part of a gang."""
    rests = {gang: until for gang, until in state.rests.items() if until > now}
    refusals = {
        pair: refusal
        for pair, refusal in state.refusals.items()
        # Keep a refusal a while longer, because the next refusal of the same node lasts longer.
        if refusal.until + LONGEST_REFUSAL_S > now
    }
    held: dict[str, Held] = {}
    free: dict[str, Amounts] = dict(world.free)
    barred = _barred(refusals, now)
    for gang, members in sorted(world.gangs.items()):
        ours = {
            each.uid: state.held[each.uid]
            for each in members
            if each.stage is Stage.PENDING and each.uid in state.held
        }
        if any(each.until <= now for each in ours.values()):
            # A gang with bound pods gets no pause, because no other gang can use its resources.
            if not any(each.stage is Stage.BOUND for each in members):
                rests[gang] = now + rules.rest_seconds
        elif not _is_torn(members, ours, world=world, barred=barred) and _is_there(ours, free):
            held |= ours
            for each in ours.values():
                free[each.node] = less(free[each.node], each.amounts)
    return State(held, rests, refusals)


def _is_there(ours: Mapping[str, Held], free: Mapping[str, Amounts]) -> bool:
    """True if the reserved resources are still free."""
    asked: dict[str, list[Amounts]] = {}
    for each in ours.values():
        asked.setdefault(each.node, []).append(each.amounts)
    return all(fits(total(parts), free.get(node, {})) for node, parts in asked.items())


def _is_torn(
    members: tuple[Member, ...], ours: Mapping[str, Held], *, world: World, barred: frozenset[Pair]
) -> bool:
    """True if the reservations of a gang do not match its needs."""
    return (
        not ours
        or bool(wording.disagreement(members))
        or bool(missing_roles(members))
        or any(each.uid not in ours for each in _needed(members, ours))
        or any(each.node not in world.machines for each in ours.values())
        or any((uid, each.node) in barred for uid, each in ours.items())
    )


def _barred(refusals: Mapping[Pair, Refusal], now: float) -> frozenset[Pair]:
    return frozenset(pair for pair, refusal in refusals.items() if refusal.until > now)


def note_refusals(
    world: World, state: State, *, member: Member, passed: Iterable[str], now: float, rules: Rules
) -> State:
    """Learn from the nodes that kube-scheduler passes for a pod.

    If kube-scheduler does not pass a node although the pod fits there, the reason is unknown here.
    kube-scheduler may only have seen a change a moment earlier, so the first refusal is short.
    """
    let_in = set(passed)
    refusals = {
        pair: refusal
        for pair, refusal in state.refusals.items()
        if pair[0] != member.uid or pair[1] not in let_in
    }
    for name in _unexpected(world, state, member=member, let_in=let_in):
        known = refusals.get((member.uid, name))
        if known is None or known.until <= now:
            times = known.times + 1 if known is not None else 0
            lasts = wait_after(
                times + 1, first_seconds=rules.refusal_seconds, longest_seconds=LONGEST_REFUSAL_S
            )
            refusals[member.uid, name] = Refusal(now + lasts, times)
    return replace(state, refusals=refusals)


def _unexpected(world: World, state: State, *, member: Member, let_in: set[str]) -> list[str]:
    """Return the nodes that were not passed although the pod seems to fit there."""
    asked = dict(member.wants.amounts)
    open_to = [
        name
        for name, machine in world.machines.items()
        if name not in let_in
        and fits(asked, world.free.get(name, {}))
        and may_run(member.wants, machine)
    ]
    others = [
        held for uid, held in state.held.items() if uid != member.uid and held.node in open_to
    ]
    free = total_free(world, others)
    return [name for name in open_to if fits(asked, free[name])]


def total_free(world: World, held: Iterable[Held]) -> dict[str, Amounts]:
    free: dict[str, Amounts] = dict(world.free)
    touched: dict[str, dict[str, int]] = {}
    for each in held:
        there = touched.get(each.node)
        if there is None:
            touched[each.node] = there = dict(free.get(each.node, {}))
        for name, amount in each.amounts.items():
            there[name] = there.get(name, 0) - amount
    return free | touched


# --- what a gang is -------------------------------------------------------------------------


def missing_roles(members: tuple[Member, ...]) -> dict[str, int]:
    there = Counter(member.role for member in _counted(members))
    roles = dict(members[0].roles)
    lack = {role: least - there[role] for role, least in roles.items()}
    return {role: count for role, count in lack.items() if count > 0}


def _counted(members: tuple[Member, ...]) -> list[Member]:
    """Return the pods that count: succeeded pods count only in a running gang."""
    runs = any(each.stage is Stage.BOUND for each in members)
    return [each for each in members if runs or each.stage is not Stage.SUCCEEDED]


def _needed(members: tuple[Member, ...], held: Mapping[str, Held]) -> list[Member]:
    """Return the pods that must be placed together to give every role its minimum."""

    def precedence(member: Member) -> tuple[bool, bool, bool, str, str]:
        stage = member.stage
        return (
            stage is not Stage.SUCCEEDED,
            stage is not Stage.BOUND,
            member.uid not in held,
            member.created,
            member.name.name,
        )

    counted = _counted(members)
    needed: list[Member] = []
    for role, least in members[0].roles:
        fellows = sorted((each for each in counted if each.role == role), key=precedence)
        needed += [each for each in fellows[:least] if each.stage is Stage.PENDING]
    return needed


class _Desk:
    """The state of one decision about all gangs."""

    def __init__(
        self, world: World, state: State, *, now: float, rules: Rules, feasibility: Feasibility
    ) -> None:
        self._world = world
        self._state = state
        self._now = now
        self._rules = rules
        self._feasibility = feasibility
        self._held = dict(state.held)
        self._barred = _barred(state.refusals, now)
        self._free = total_free(world, self._held.values())
        self._tenants = {name: set(tenants) for name, tenants in world.tenants.items()}
        self._waiting: list[GangName] = []
        """Gangs that do not fit yet and come before the current gang."""
        self.verdicts: dict[GangName, Verdict] = {}
        for held in self._held.values():
            self._tenants.setdefault(held.node, set()).add(tenant_of(held.gang))

    def state(self) -> State:
        return replace(self._state, held=self._held)

    def turn(self, gang: GangName) -> tuple[bool, int, str, GangName]:
        """Return the sort key of a gang."""
        members = self._world.gangs[gang]
        begun = any(each.stage is Stage.BOUND or each.uid in self._held for each in members)
        alive = [each for each in members if each.stage is not Stage.SUCCEEDED] or members
        highest = max(each.priority for each in alive)
        return (not begun, -highest, min(each.created for each in alive), gang)

    def is_ready(self, gang: GangName) -> bool:
        """Return true if a gang takes a turn; otherwise record its verdict."""
        members = self._world.gangs[gang]
        verdict = self._settled(members)
        if verdict is None and gang in self._state.rests:
            verdict = Verdict(
                Standing.WAITING,
                f"{called(gang)} had room for all its pods, but they were not bound within"
                f" {self._rules.hold_seconds:g} s, so other gangs go first for a while",
            )
        if verdict is not None:
            self.verdicts[gang] = verdict
        return verdict is None

    def _settled(self, members: tuple[Member, ...]) -> Verdict | None:
        gang = members[0].gang
        if problem := wording.disagreement(members):
            return Verdict(Standing.WRONG, problem)
        pending = [each for each in members if each.stage is Stage.PENDING]
        if not pending:
            return Verdict(Standing.BOUND, f"all pods of {called(gang)} have their nodes")
        if missing := missing_roles(members):
            told = ", ".join(f"{count} of role {role}" for role, count in sorted(missing.items()))
            return Verdict(
                Standing.INCOMPLETE, f"{called(gang)} waits for pods that are missing: {told}"
            )
        if all(each.uid in self._held for each in pending):
            return Verdict(Standing.RESERVED, wording.tell_reserved(members, self._held))
        return self._never(members)

    def _never(self, members: tuple[Member, ...]) -> Verdict | None:
        """Return the verdict on a gang that would not fit even on empty nodes."""
        needed = tuple(_needed(members, {}))
        found = self._feasibility(needed, self._world.machines)
        if found.nodes is not None or not found.is_proven:
            return None
        short = next(each for each in needed if each.name.name == found.short_of)
        why = wording.tell_never(short, len(needed), machines=self._world.machines.values())
        return Verdict(Standing.IMPOSSIBLE, f"{called(members[0].gang)} can never fit: {why}")

    def serve(self, gang: GangName) -> None:
        """Reserve resources for a gang if they are free."""
        members = self._world.gangs[gang]
        needed = [each for each in _needed(members, self._held) if each.uid not in self._held]
        older = self._waiting[0] if self._waiting else None
        if older is not None and self._rules.overtaking is Overtaking.NEVER:
            self._wait(gang, f"an older one, {called(older)}, goes first and does not fit yet")
            return
        found = self._place(gang, needed)
        if found.nodes is None:
            self._wait(
                gang, _tell_short(members, found, machines=self._world.machines, free=self._free)
            )
            return
        if older is not None and not _is_harmless(
            self._world, self._waiting, members=members, nodes=found.nodes
        ):
            self._wait(gang, f"going before the older {called(older)} would keep that from fitting")
            return
        self._hold(gang, needed, nodes=found.nodes)
        self._add_others(gang, members)
        self.verdicts[gang] = self._tell_served(members)

    def _place(self, gang: GangName, members: list[Member]) -> Placing:
        ground = Ground(
            self._world.machines,
            self._free,
            {name: frozenset(tenants) for name, tenants in self._tenants.items()},
            tenant_of(gang),
            self._barred,
        )
        return placing.place(members, ground)

    def _hold(self, gang: GangName, members: list[Member], *, nodes: Mapping[str, str]) -> None:
        until = self._now + self._rules.hold_seconds
        for member in members:
            amounts = dict(member.wants.amounts)
            held = Held(member.uid, gang, nodes[member.uid], amounts, until)
            self._held[member.uid] = held
            self._take(held)

    def _take(self, held: Held) -> None:
        self._free[held.node] = less(self._free.get(held.node, {}), held.amounts)
        self._tenants.setdefault(held.node, set()).add(tenant_of(held.gang))

    def _add_others(self, gang: GangName, members: tuple[Member, ...]) -> None:
        """Reserve resources for each pod above the minimum that fits."""
        for member in sorted(members, key=lambda each: (each.created, each.name.name)):
            if member.stage is Stage.PENDING and member.uid not in self._held:
                found = self._place(gang, [member])
                if found.nodes is not None:
                    self._hold(gang, [member], nodes=found.nodes)

    def _wait(self, gang: GangName, why: str) -> None:
        self._waiting.append(gang)
        self.verdicts[gang] = Verdict(Standing.WAITING, f"{called(gang)} waits: {why}")

    def _tell_served(self, members: tuple[Member, ...]) -> Verdict:
        left = [
            each for each in members if each.stage is Stage.PENDING and each.uid not in self._held
        ]
        if left:
            what = f"{called(members[0].gang)} has room for all that it needs"
            why = f"there is none for {len(left)} more, such as {left[0].name.name}"
            return Verdict(Standing.WAITING, f"{what}, and {why}")
        return Verdict(Standing.RESERVED, wording.tell_reserved(members, self._held))


def _is_harmless(
    world: World,
    waiting: Iterable[GangName],
    *,
    members: tuple[Member, ...],
    nodes: Mapping[str, str],
) -> bool:
    """Return true if all waiting gangs would still fit if only they and this gang ran."""
    machines = {name: at_best(each) for name, each in world.machines.items()}
    free: dict[str, Amounts] = {name: each.allocatable for name, each in machines.items()}
    for member in members:
        node = nodes.get(member.uid, member.node)
        if node and member.stage is not Stage.SUCCEEDED:
            free[node] = less(free.get(node, {}), dict(member.wants.amounts))
    others = [each for gang in waiting for each in _needed(world.gangs[gang], {})]
    return placing.place(others, Ground(machines, free, {}, "")).nodes is not None


def _tell_short(
    members: tuple[Member, ...],
    found: Placing,
    *,
    machines: Mapping[str, NodeTraits],
    free: Mapping[str, Amounts],
) -> str:
    needed = len(_needed(members, {}))
    if found.nodes is None and not found.is_proven:
        return wording.tell_unproven(needed)
    short = next(each for each in members if each.name.name == found.short_of)
    return wording.tell_short(short, needed, machines=machines, free=free)
