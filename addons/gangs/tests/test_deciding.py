"""Gangs get room for all members or none, the oldest first, within each node's capacity."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from addons.gangs.tests.casts import make_gang, make_machine, make_member, make_world
from dljob.core.placement.amounts import fits, total
from dljob.kube.constraints.requirements import Taint
from dljob_gangs.deciding import decide, missing_roles, note_refusals
from dljob_gangs.members import (
    Member,
    Overtaking,
    Refusal,
    Rules,
    Stage,
    Standing,
    State,
    Verdict,
    World,
)

RULES = Rules()
NODE = make_machine("a", cpu=4)


def look(
    world: World, state: State | None = None, now: float = 0.0, rules: Rules = RULES
) -> tuple[State, dict[str, Verdict]]:
    decision = decide(world, state or State(), now=now, rules=rules)
    return decision.state, {gang.name: each for gang, each in decision.verdicts.items()}


def standings(verdicts: dict[str, Verdict]) -> dict[str, Standing]:
    return {gang: each.standing for gang, each in verdicts.items()}


def test_oldest_gang_is_first_and_younger_ones_wait():
    running = make_gang("runs", 1, created=9)
    running = [replace(each, stage=Stage.BOUND, node="a") for each in running]
    old, young = make_gang("old", 4, created=1), make_gang("young", 2, created=2)
    state, verdicts = look(make_world([NODE], [*running, *old, *young]))
    assert not state.held
    assert "there is no room for old-worker-3, which asks for 1 cpu" in verdicts["old"].message
    assert verdicts["young"].message == (
        "gang young waits: an older one, gang old, goes first and does not fit yet"
    )


def test_begun_gang_goes_before_all_others():
    half = make_gang("half", 3, created=5)
    half[0] = replace(half[0], stage=Stage.BOUND, node="a")
    old = make_gang("old", 3, created=1, priority=9)
    state, verdicts = look(make_world([NODE], [*old, *half]))
    assert standings(verdicts) == {"half": Standing.RESERVED, "old": Standing.WAITING}
    assert len(state.held) == 2


def test_incomplete_or_impossible_gang_delays_no_other():
    never = make_gang("never", 5, created=1)
    part = make_gang("part", 1, least=2, created=2)
    young = make_gang("young", 4, created=3)
    _, verdicts = look(make_world([NODE], [*never, *part, *young]))
    assert standings(verdicts) == {
        "never": Standing.IMPOSSIBLE,
        "part": Standing.INCOMPLETE,
        "young": Standing.RESERVED,
    }


def test_cordoned_node_is_no_reason_for_never():
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    lasting = Taint("for-others", "", "NoSchedule")
    team = make_gang("g", 2)
    _, verdicts = look(make_world([replace(NODE, taints=(cordon,))], team))
    assert verdicts["g"].standing is Standing.WAITING
    _, verdicts = look(make_world([replace(NODE, taints=(lasting,))], team))
    assert verdicts["g"].standing is Standing.IMPOSSIBLE
    assert "change them, or label or untaint a node" in verdicts["g"].message


def test_surplus_pods_join_as_far_as_there_is_room():
    team = make_gang("g", 6, least=3)
    state, verdicts = look(make_world([NODE], team))
    assert len(state.held) == 4
    assert verdicts["g"] == (
        Standing.WAITING,
        "gang g has room for all that it needs, and there is none for 2 more, such as g-worker-4",
    )
    other = make_gang("h", 2, created=5)
    state, verdicts = look(make_world([NODE, make_machine("b", cpu=2)], [*team, *other]))
    assert verdicts["h"].standing is Standing.WAITING, "the older gang's surplus takes the room"


def test_unused_room_goes_to_others():
    old, young = make_gang("old", 3, created=1), make_gang("young", 3, created=2)
    world = make_world([NODE], [*old, *young])
    state, _ = look(world)
    state, verdicts = look(world, state, now=59.0)
    assert verdicts["old"].standing is Standing.RESERVED
    state, verdicts = look(world, state, now=60.0)
    assert standings(verdicts) == {"old": Standing.WAITING, "young": Standing.RESERVED}
    assert "were not bound within 60 s" in verdicts["old"].message
    state, verdicts = look(world, state, now=125.0)
    assert standings(verdicts) == {"old": Standing.RESERVED, "young": Standing.WAITING}


def test_succeeded_pods_count_only_for_a_running_gang():
    done = make_member("g", 0, roles={"worker": 3}, stage=Stage.SUCCEEDED)
    begins = [make_member("g", number, roles={"worker": 3}) for number in (1, 2)]
    assert missing_roles((done, *begins)) == {"worker": 1}
    runs = replace(begins[0], stage=Stage.BOUND, node="a")
    assert missing_roles((done, runs, begins[1])) == {}
    state, _ = look(make_world([NODE], [done, runs, begins[1]]))
    assert set(state.held) == {begins[1].uid}


def test_node_refused_by_kube_scheduler_is_avoided_for_a_while():
    machines = [make_machine("a", cpu=4), make_machine("b", cpu=4)]
    team = make_gang("g", 2)
    world = make_world(machines, team)
    state, _ = look(world)
    assert {each.node for each in state.held.values()} == {"a"}
    state = note_refusals(world, state, member=team[0], passed=["b"], now=1.0, rules=RULES)
    assert state.refusals == {(team[0].uid, "a"): Refusal(3.0, 0)}
    state, _ = look(world, state, now=1.0)
    assert state.held[team[0].uid].node == "b"
    # The second refusal counts for longer.
    state = note_refusals(world, state, member=team[0], passed=["b"], now=4.0, rules=RULES)
    assert state.refusals[team[0].uid, "a"] == Refusal(8.0, 1)
    state = note_refusals(world, state, member=team[0], passed=["a", "b"], now=5.0, rules=RULES)
    assert not state.refusals


def test_younger_gang_overtakes_only_without_harm():
    harmless = Rules(overtaking=Overtaking.HARMLESS)
    machines = [make_machine("a", cpu=4), make_machine("b", cpu=2, gpu=2)]
    runs = make_member("runs", 0, node="b", gpu=2)
    old = make_gang("old", 1, created=1, gpu=1)
    away = make_gang("away", 4, created=2)
    _, verdicts = look(make_world(machines, [runs, *old, *away]), rules=harmless)
    assert standings(verdicts)["away"] is Standing.RESERVED
    free = make_member("runs", 0, node="b", gpu=1, cpu=2)
    greedy = make_gang("old", 2, created=1, gpu=1)
    world = make_world(machines, [free, *greedy, *make_gang("late", 1, created=3, gpu=1)])
    _, verdicts = look(world, rules=harmless)
    assert verdicts["late"].message == (
        "gang late waits: going before the older gang old would keep that from fitting"
    )


SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(SIZES, st.integers(0, 8), st.integers(0, 3))
def test_gangs_get_all_or_nothing_in_order(sizes: list[int], cpu: int, other: int):
    machines = [make_machine("a", cpu=cpu), make_machine("b", cpu=other)]
    gangs = {f"g{i}": make_gang(f"g{i}", size, created=i) for i, size in enumerate(sizes)}
    state, verdicts = look(make_world(machines, [each for team in gangs.values() for each in team]))
    blocked = False
    for name, team in gangs.items():
        held = [each.uid in state.held for each in team]
        assert all(held) or not any(held)
        if verdicts[name].standing is Standing.WAITING:
            blocked = True
        assert not (blocked and any(held)), "no gang overtakes an older one that waits"


class Story(RuleBasedStateMachine):
    """Pods come, are bound, end and are deleted; time passes; nodes come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.machines = {name: make_machine(name, cpu=4) for name in "ab"}
        self.members: dict[str, Member] = {}
        self.state = State()
        self.now = 0.0
        self.count = 0

    def world(self) -> World:
        return make_world(list(self.machines.values()), list(self.members.values()))

    @rule(gang=st.sampled_from("xyz"), least=st.just(3), cpu=st.integers(1, 2))
    def create(self, gang: str, least: int, cpu: int) -> None:
        self.count += 1
        member = make_member(
            gang, self.count, roles={"worker": least}, created=self.count % 60, cpu=cpu
        )
        self.members[member.uid] = member

    @rule()
    def look_on(self) -> None:
        before = dict(self.state.held)
        self.state, _ = look(self.world(), self.state, self.now)
        for uid, held in self.state.held.items():
            assert held.until > self.now, "nothing is held beyond its time"
            assert uid not in before or held.until >= before[uid].until
        self.check()

    @precondition(lambda self: self.state.held)
    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.state.held)))
        if uid in self.members and self.members[uid].stage is Stage.PENDING:
            node = self.state.held[uid].node
            self.members[uid] = replace(self.members[uid], stage=Stage.BOUND, node=node)
            self.look_on()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), how=st.sampled_from(["delete", "succeed"]))
    def end(self, data: st.DataObject, how: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.members)))
        if how == "delete":
            del self.members[uid]
        elif self.members[uid].stage is Stage.BOUND:
            self.members[uid] = replace(self.members[uid], stage=Stage.SUCCEEDED)
        self.look_on()

    @rule(seconds=st.sampled_from([1.0, 40.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.members)
    @rule(data=st.data(), nodes=st.sampled_from([[], ["a"], ["a", "b"]]))
    def refuse(self, data: st.DataObject, nodes: list[str]) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        if member.stage is Stage.PENDING:
            self.state = note_refusals(
                self.world(), self.state, member=member, passed=nodes, now=self.now, rules=RULES
            )

    @rule()
    def lose_and_find_a_node(self) -> None:
        if "b" in self.machines and not any(m.node == "b" for m in self.members.values()):
            del self.machines["b"]
        else:
            self.machines["b"] = make_machine("b", cpu=4)
        self.look_on()

    def check(self) -> None:
        world = self.world()
        for name in self.machines:
            asked = [each.amounts for each in self.state.held.values() if each.node == name]
            assert fits(total(asked), world.free[name]), "never more than a node has"
        for gang, team in world.gangs.items():
            held = [each for each in team if each.uid in self.state.held]
            ready = [
                each
                for each in team
                if each.uid in self.state.held or each.stage is not Stage.PENDING
            ]
            assert not held or len(ready) >= 3, f"{gang} got a part"
            assert all(each.stage is Stage.PENDING for each in held)


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=30, stateful_step_count=40)
