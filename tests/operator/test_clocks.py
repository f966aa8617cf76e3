"""The operator's clock when the machines of two leaders disagree about the time."""

import shutil
import sys
from dataclasses import replace

import pytest

from dljob.control.situation.status import Status
from dljob.control.situation.status_documents import write_status, write_time
from dljob.kube.names import Name
from dljob.operator.jobs.entries import Jobs, Specs
from tests.attack.clocks import Clock
from tests.operator.stages import LEADS, Stage

HALF_AN_HOUR = 1800
DEADLINE_S = 900
LONG = 10**6
SAID = "of the API server, by which this operator decides"


NODES = {"gpu-a": 2}


@pytest.mark.cluster
@pytest.mark.processes
def test_leader_with_a_wrong_clock_continues(stage: Stage):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    clock = Clock(stage.folder, compiler)
    moved = [f"{name}={value}" for name, value in clock.environment.items()]
    program = ("/usr/bin/env", *moved, sys.executable, "-m", "dljob.operator")
    stage.start_operator(program=program)
    stage.submit(
        "goes-on", iterations=LONG, gpus={"options": [1]}, activeDeadlineSeconds=DEADLINE_S
    )
    began = stage.wait_for_phase("goes-on", "Running")["startedAt"]
    [pod] = stage.pods_of("goes-on")
    trainings = stage.kubelets.trainings(pod["metadata"]["name"])
    # The clocks of the next two leaders are ahead and behind by more than the job's deadline.
    for step in (HALF_AN_HOUR, -2 * HALF_AN_HOUR):
        stage.operators[-1].stop()
        clock.set(step)
        operator = stage.start_operator(program=program)
        # A new job completes, and the running one goes on.
        stage.submit(f"visits-{abs(step)}", iterations=50, gpus={"options": [1]})
        stage.wait_for_phase(f"visits-{abs(step)}", "Completed")
        assert SAID in operator.log.read_text(), operator.last_words()
        status = stage.status("goes-on")
        assert (status["phase"], status["startedAt"]) == ("Running", began)
        assert (status.get("restarts", 0), status.get("failures", 0)) == (0, 0)
        assert stage.kubelets.trainings(pod["metadata"]["name"]) == trainings
        assert operator.log.read_text().count(LEADS) == 1, operator.last_words()


def test_future_times_are_moved_back_for_that_job_alone():
    now = 1_000_000.0
    hour = 3600.0
    status = Status(
        submitted_at=now, started_at=now + 10.0, retry_at=now + 40.0, decided_at=now + 30.0
    )
    jobs = Jobs(Specs(), lambda: now + 30.0)

    def read(name: str, recorded: Status) -> Status:
        metadata = {
            "namespace": "default",
            "name": name,
            "uid": name,
            "generation": 1,
            "creationTimestamp": write_time(now),
        }
        return jobs.read(
            {"metadata": metadata, "spec": {}, "status": write_status(recorded)}
        ).status

    ahead = replace(
        status,
        submitted_at=now + hour,
        started_at=now + hour + 10.0,
        retry_at=now + hour + 40.0,
        decided_at=now + hour + 30.0,
    )
    assert read("right", status).started_at == now + 10.0
    moved = read("ahead", ahead)
    assert (moved.started_at, moved.retry_at) == (now + 10.0, now + 40.0)
    assert jobs.status(Name("default", "right")) == read("right", status)
