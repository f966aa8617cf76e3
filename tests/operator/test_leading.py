"""One of several operators leads; the API server refuses the others' writes (law 2)."""

import pytest

from tests.operator.stages import LEADS, Stage

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


def holder(stage: Stage) -> tuple[str, int]:
    spec = stage.api.get(stage.lease())["spec"]
    return spec["holderIdentity"], spec["leaseTransitions"]


@pytest.mark.story
def test_second_operator_takes_over(stage: Stage):
    first = stage.start_operator()
    stage.submit("job", iterations=10**6)
    stage.wait_for_phase("job", "Running")
    before = holder(stage)
    pids = stage.kubelets.pids()
    stage.start_operator(waits=True, settings={"lease.lookSeconds": 0.2})
    assert holder(stage) == before, "one operator leads"
    first.kill()
    stage.let_lease_end()
    stage.wait(lambda: holder(stage)[1] > before[1])
    stage.wait(lambda: stage.status("job")["epoch"] == holder(stage)[1])
    stage.wait(lambda: stage.status("job").get("phase") == "Running")
    assert stage.kubelets.pids() == pids, "trainings go on"


def test_frozen_leader_is_fenced(stage: Stage):
    asleep = stage.start_operator()
    stage.submit("job", iterations=10**6)
    stage.wait_for_phase("job", "Running")
    asleep.freeze()
    stage.let_lease_end()
    awake = stage.start_operator()
    epoch = holder(stage)[1]
    stage.wait(lambda: stage.status("job")["epoch"] == epoch)
    asleep.thaw()
    stage.wait(lambda: not asleep.is_running)
    assert "leads no more" in asleep.log.read_text()
    assert awake.is_running
    assert stage.status("job")["epoch"] == epoch
    assert holder(stage)[1] == epoch


def test_waiting_operator_leads_later_even_if_the_lease_is_deleted(stage: Stage):
    first = stage.start_operator()
    epoch = holder(stage)[1]
    second = stage.start_operator(waits=True)
    # The second operator cannot see the deleted epoch anywhere else.
    first.freeze()
    stage.api.delete(stage.lease())
    stage.wait(lambda: LEADS in second.log.read_text())
    assert holder(stage)[1] > epoch


def test_deleted_lease_does_not_lower_the_epoch(stage: Stage):
    first = stage.start_operator()
    stage.submit("job", iterations=10**6)
    stage.wait_for_phase("job", "Running")
    epoch = stage.status("job")["epoch"]
    first.kill()
    stage.api.delete(stage.lease())
    stage.start_operator()
    stage.wait(lambda: stage.status("job")["epoch"] == epoch + 1)
