"""``import dljob`` against a real control plane, in a program and in a notebook."""

import asyncio

import pytest

import dljob
from tests.ctl.cluster.playing import in_namespace
from tests.loops import on_loop

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

FOREVER = 10**6


@pytest.fixture
def there(scene):
    kubeconfig = in_namespace(scene.stage.plane.admin, scene.namespace)
    with dljob.connect(kubeconfig=str(kubeconfig)) as connection:
        yield connection


def follow_a_job(scene, there, name):
    """From the submission of a job to its end, by everything that asks."""
    job = dljob.Job.from_document(scene.stage.make_job(name, iterations=FOREVER))
    plan = there.plan(job)
    assert [effect["job"] for effect in plan.effects] == [name]
    assert there.submit(job).name == name
    with pytest.raises(dljob.Refused) as refused:
        there.submit(job)
    assert name in str(refused.value)
    running = there.wait(job, "Running", timeout=240)
    assert running.gpus >= 1
    assert there.why(job).message
    assert there.scale(job, 1).spec["gpus"]["options"] == [1]
    assert there.suspend(job).is_suspended
    there.wait(job, "Suspended", timeout=240)
    assert there.events(job)
    assert there.history(job)
    assert name in [each.name for each in there.jobs()]
    there.cancel(job)
    there.wait_until_gone(job, timeout=240)
    with pytest.raises(dljob.NotFound):
        there.get(job)


@on_loop
async def test_a_notebook_follows_a_job_while_its_event_loop_runs(scene, there):
    follow_a_job(scene, there, "noted")


def test_closing_ends_a_followed_log_and_other_questions_are_answered_meanwhile(scene):
    kubeconfig = in_namespace(scene.stage.plane.admin, scene.namespace)
    scene.stage.submit("followed", iterations=FOREVER)
    scene.stage.wait_for_phase("followed", "Running")

    async def read(there, begun):
        async for _ in there.logs("followed", dljob.Logs(follow=True)):
            begun.set()

    async def ask():
        begun = asyncio.Event()
        async with dljob.connect_async(kubeconfig=str(kubeconfig)) as there:
            reading = asyncio.create_task(read(there, begun))
            await asyncio.wait_for(begun.wait(), 240)
            phase = (await there.get("followed")).phase
        await asyncio.wait_for(reading, 240)
        return phase

    assert asyncio.run(ask()) == "Running"
    with dljob.connect(kubeconfig=str(kubeconfig)) as there:
        there.cancel("followed")
        there.wait_until_gone("followed", timeout=240.0)


def test_refusal_of_the_cluster_names_document_and_field(scene, there):
    documents = [scene.stage.make_job(name, iterations=10) for name in ("good", "bad")]
    documents[1]["spec"]["priority"] = 10**12
    with pytest.raises(dljob.WrongJob) as refused:
        there.submit_all([dljob.Job.from_document(each) for each in documents])
    [problem] = refused.value.problems
    assert (problem.document, problem.path) == (1, "spec.priority")
    assert scene.stage.is_gone("good")
