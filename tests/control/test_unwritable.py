"""A job whose status is refused keeps all it has; all others go on."""

from collections.abc import Mapping
from functools import partial
from itertools import combinations

import pytest

from dljob.control.situation.ports import NotKeptAlone
from dljob.control.situation.quarantine import FIRST_WAIT_S, LONGEST_WAIT_S, Unwritable
from dljob.core import policies
from dljob.core.contract import Policy
from dljob.core.model import JobId, Mechanism, Phase
from dljob.core.planning import Stop
from tests.control.governing import Government, governed, has_begun, status, submit, told
from tests.control.stories import Plot, Story
from tests.core.test_policies_laws import Dice

WHY = "its status cannot be written: the rules of the house forbid it"
LONG = 2 * LONGEST_WAIT_S
"""After this time the controller offers the status again."""


def gpus_of(government: Government, job: JobId) -> int:
    placement = status(government, job).placement
    return placement.gpus if placement is not None else 0


def insist_on_no_overlap(government: Government) -> None:
    held: Mapping[JobId, set[object]] = {
        job: set(entry.status.placement.refs()) if entry.status.placement else set()
        for job, entry in government.world.entries.items()
    }
    for one, other in combinations(held, 2):
        assert not held[one] & held[other], (one, other)


def test_refused_job_stops_no_other_and_is_reported_once():
    with governed({"n0": 4}) as government:
        world = government.world
        odd = submit(government, "odd")
        world.unkept[odd] = WHY
        fine = submit(government, "fine")
        government.begin()
        world.run(LONG)
        assert has_begun(government, fine)
        assert (status(government, odd).generation, status(government, odd).pods) == (0, ())
        assert told(government, odd) == [("SetAside", f"is set aside: {WHY}")]
        late = submit(government, "late")
        world.run(30.0)
        assert has_begun(government, late)
        world.unkept.clear()
        world.run(LONG)
        assert has_begun(government, odd)
        assert ("Readmitted", "its status can be written again") in told(government, odd)


def test_refused_job_keeps_its_gpus_and_trains():
    with governed({"n0": 2}) as government:
        world = government.world
        odd = submit(government, "odd", options=(1, 2))
        government.begin(run=60.0)
        assert gpus_of(government, odd) == 2
        world.unkept[odd] = WHY
        before, living = status(government, odd), set(world.witness.living)
        late = submit(government, "late")
        world.run(LONG)
        assert status(government, odd) == before
        assert world.witness.living == living, "nothing unrecorded was done"
        assert status(government, late).placement is None
        insist_on_no_overlap(government)
        world.unkept.clear()
        world.run(LONG)
        assert has_begun(government, late)
        assert gpus_of(government, odd) == 1
        insist_on_no_overlap(government)


def test_refused_job_without_gpus_can_be_deleted():
    with governed({"n0": 1}) as government:
        world = government.world
        submit(government, "first")
        odd = submit(government, "odd")
        world.unkept[odd] = WHY
        government.begin(run=60.0)
        assert status(government, odd).conditions == (), "no condition could be written"
        world.cancel(odd)
        world.run(60.0)
        assert odd not in world.entries


def test_record_refused_at_a_takeover_precedes_all_commands():
    with governed({"n0": 2}) as government:
        world = government.world
        odd = submit(government, "odd")
        government.begin(run=60.0)
        reign = government.begin()
        world.unkept[odd] = WHY
        records, commands = world.records, world.witness.commands
        government._loop.run_until_complete(
            reign.controller.effects.leave_alone(NotKeptAlone({odd: WHY}))
        )
        world.run(60.0)
        assert world.records == records
        assert world.witness.commands == commands
        world.unkept.clear()
        world.run(LONG)
        assert world.records > records, "under the new epoch, without other changes"
        assert has_begun(government, odd)


def stops(government: Government, job: JobId) -> int:
    return [reason for reason, _ in told(government, job)].count("Stopping")


def test_records_of_others_are_reported_once():
    """The next look finds them unchanged."""
    with governed({"n0": 4}) as government:
        world = government.world
        jobs = odd, fine = submit(government, "odd"), submit(government, "fine")
        government.begin(run=60.0)
        assert all(has_begun(government, job) for job in jobs)
        world.unkept[odd] = WHY
        for job in jobs:
            world.change(job, suspend=True)
        decisions = len(government.memory.plans)
        government.wake()
        world.run(60.0)
        assert status(government, fine).phase is Phase.SUSPENDED
        assert [stops(government, job) for job in jobs] == [0, 1]
        steps = [step for plan in government.memory.plans[decisions:] for step in plan.steps]
        assert [step.job for step in steps if isinstance(step, Stop)] == [fine]
        world.unkept.clear()
        world.run(LONG)
        assert [stops(government, job) for job in jobs] == [1, 1]


class RefusedStory(Story):
    """Now and then the platform refuses the status of a job."""

    def tell(self) -> None:
        for _ in range(20):
            self.world.later(
                0.0, self.plot.seconds, partial(self._unless_calm, self._refuse_for_a_while)
            )
        super().tell()

    def _refuse_for_a_while(self) -> None:
        job = self._some_job()
        if job is not None:
            self.world.note(f"the status of {job} is refused")
            self.world.unkept[job] = WHY
            self.world.later(1.0, 60.0, partial(self._take_again, job))

    def _take_again(self, job: JobId) -> None:
        self.world.unkept.pop(job, None)


@pytest.mark.parametrize("mechanism", list(Mechanism))
@pytest.mark.parametrize("name", ["dice", pytest.param("adaptive", marks=pytest.mark.slow)])
def test_laws_hold_under_any_refusal(name: str, mechanism: Mechanism):
    policy: Policy = Dice() if name == "dice" else policies.make(name)
    story = RefusedStory(Plot(policy, mechanism), f"refused/{name}/{mechanism}")
    try:
        story.tell()
        story.world.unkept.clear()
        assert story.end() == []
        reigns = story.government.reigns
        assert any(WHY in text for reign in reigns for _, _, text in reign.platform.told)
    finally:
        story.close()


def test_refused_status_is_offered_ever_more_rarely():
    unwritable, now, offered = Unwritable(), 0.0, []
    job = JobId("odd")
    assert unwritable.refuse({job: WHY}, now) == {job: WHY}
    for _ in range(400):
        now += 5.0
        unwritable.update({job}, now)
        if unwritable.offered:
            offered.append(now)
            assert unwritable.jobs == frozenset()
            assert unwritable.refuse({job: WHY}, now) == {}, "reported once"
        else:
            assert unwritable.jobs == {job}
    pauses = [after - before for before, after in zip([0.0, *offered], offered, strict=False)]
    assert pauses[:4] == [FIRST_WAIT_S * 2**n for n in range(4)]
    assert pauses[-1] == LONGEST_WAIT_S
    unwritable.update((), now + LONGEST_WAIT_S)
    assert (unwritable.jobs, unwritable.offered) == (frozenset(), frozenset()), "it is gone"
