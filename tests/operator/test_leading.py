"""Of several operators one leads; what the others would still do is refused (law 2)."""

import pytest

from tests.operator.stages import LEADS, Stage, staged

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


@pytest.fixture
def stage(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {"gpu-a": 4}) as stage:
        yield stage


def holder(stage: Stage) -> tuple[str, int]:
    spec = stage.api.get(stage.lease())["spec"]
    return spec["holderIdentity"], spec["leaseTransitions"]


@pytest.mark.story
def test_the_second_takes_over_when_the_first_is_killed(stage: Stage):
    first = stage.start_operator()
    stage.submit("job", iterations=10**6)
    stage.wait_for_phase("job", "Running")
    before = holder(stage)
    pids = stage.kubelets.pids()
    stage.start_operator(waits=True, settings={"lease.lookSeconds": 0.2})
    assert holder(stage) == before, "one is enough"
    first.kill()
    stage.let_lease_end()
    stage.wait(lambda: holder(stage)[1] > before[1])
    stage.wait(lambda: stage.status("job")["epoch"] == holder(stage)[1])
    stage.wait(lambda: stage.status("job").get("phase") == "Running")
    assert stage.kubelets.pids() == pids, "what trains goes on"


def test_what_a_leader_does_that_was_asleep_is_refused(stage: Stage):
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


def test_who_waits_for_its_turn_leads_in_a_later_epoch_also_when_the_lease_is_deleted(stage: Stage):
    first = stage.start_operator()
    epoch = holder(stage)[1]
    second = stage.start_operator(waits=True)
    # The second operator cannot create the Lease again, and has written its epoch nowhere else.
    first.freeze()
    stage.api.delete(stage.lease())
    stage.wait(lambda: LEADS in second.log.read_text())
    assert holder(stage)[1] > epoch


def test_a_lease_that_was_deleted_does_not_let_the_epoch_fall(stage: Stage):
    first = stage.start_operator()
    stage.submit("job", iterations=10**6)
    stage.wait_for_phase("job", "Running")
    epoch = stage.status("job")["epoch"]
    first.kill()
    stage.api.delete(stage.lease())
    stage.start_operator()
    stage.wait(lambda: stage.status("job")["epoch"] == epoch + 1)
