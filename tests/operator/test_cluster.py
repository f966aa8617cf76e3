"""Writes to a real API server have preconditions, an order and one writer."""

import asyncio
import random
from dataclasses import replace

import pytest

from dljob.control.situation.ports import Fenced, PodKey, PodOrder, PodPhase
from dljob.core.model import JobId, NodeName, Phase, Placement
from dljob.kube import access, names
from dljob.kube.certificates import Authority, Certificates
from dljob.kube.client import ApiServer
from dljob.kube.events import EventWriter
from dljob.kube.resources import DLJOBS, NODES, PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.cluster import Cluster, ClusterSettings
from dljob.operator.jobs.entries import Specs
from dljob.operator.jobs.epochs import Term
from dljob.operator.jobs.status_writing import differences
from dljob.operator.jobs.trusted_jobs import TrustedJobs
from dljob.operator.nodes.ownership import OwnershipRules
from dljob.operator.nodes.reserving import Reservations
from dljob.operator.pods.dry_runs import DryRuns
from dljob.operator.podspecs.podsettings import PodSettings
from tests.loops import on_loop
from tests.operator.stages import Stage, staged

pytestmark = [pytest.mark.cluster, pytest.mark.processes]

NODE = NodeName("gpu-a")
RULES = OwnershipRules(PodSettings().taint, "nvidia")


@pytest.fixture
def stage(control_plane, namespace, tmp_path):
    with staged(control_plane, namespace, tmp_path, {NODE: 4}) as stage:
        stage.submit("job")
        yield stage


class Side:
    """The cluster as one operator writes to it."""

    def __init__(self, stage: Stage, epoch: int) -> None:
        self.api = ApiServer(access.find(str(stage.plane.admin)))
        self.mirrors = Mirrors()
        self.woken = asyncio.Event()
        self.leads = True
        """By its own knowledge."""
        self.is_replaced = False
        """Another operator holds the Lease."""
        specs = Specs()
        events = EventWriter(self.api, instance="test")
        term = Term(epoch, lambda: self.leads, self.is_over)
        jobs = TrustedJobs(self.mirrors, specs, term=term, warn=events.warn)
        settings = ClusterSettings(pods=PodSettings(virtual_gpus=True))
        self.dry_runs = DryRuns(self.api, specs, settings=settings.pods, wake=self.woken.set)
        self.cluster = Cluster(
            self.api,
            self.mirrors,
            jobs=jobs,
            certificates=Certificates(self.api, Authority.new(), chance=random.Random(1)),
            events=events,
            dry_runs=self.dry_runs,
            settings=settings,
            reservations=Reservations(
                self.api,
                self.mirrors,
                jobs=jobs,
                namespace=stage.namespace,
                pool=settings.pool,
                rules=RULES,
            ),
        )
        self.namespace = stage.namespace
        self.job = JobId(f"{stage.namespace}/job")

    async def is_over(self):
        return self.is_replaced

    async def see(self):
        """Look at everything until the job may be handled."""
        for mirror, resource in (
            (self.mirrors.jobs, DLJOBS),
            (self.mirrors.pods, PODS),
            (self.mirrors.nodes, NODES),
        ):
            namespace = "" if resource is NODES else self.namespace
            listing = await self.api.list(resource, namespace)
            mirror.show_all(listing.items, int(listing.version), namespace=namespace)
        observation = await self.cluster.observe()
        while self.job not in observation.entries:
            await self.woken.wait()
            self.woken.clear()
            observation = await self.cluster.observe()
        return observation

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.dry_runs.close()
        await self.api.close()


def given(status, gpus):
    placement = Placement.of({NODE: gpus}, "A100")
    return replace(
        status.decided(placement, now=100.0).with_pods([NODE], 100.0), phase=Phase.INITIALIZED
    )


async def record_given(side, gpus):
    status = given((await side.see()).entries[side.job].status, gpus)
    await side.cluster.record({side.job: status})
    return status


@on_loop
async def test_next_leader_reads_the_record(stage):
    async with Side(stage, 1) as side, Side(stage, 1) as other:
        status = await record_given(side, [0, 1])
        assert (await side.cluster.observe()).entries[side.job].status is status
        theirs = (await other.see()).entries[side.job]
        assert theirs.status.placement == status.placement
        assert theirs.status.pods == status.pods
        assert stage.job("job")["metadata"]["finalizers"] == [names.FINALIZER]


@on_loop
async def test_former_leader_does_not_overwrite_a_newer_epoch(stage):
    """It has seen the newer version, so that the precondition alone would allow the write."""
    async with Side(stage, 1) as old, Side(stage, 2) as new:
        status = await record_given(old, [0])
        await new.see()
        await new.cluster.stamp()
        old.is_replaced = True
        old.mirrors.jobs.show(stage.job("job"))
        for write in (
            old.cluster.record({old.job: given(status, [0, 1, 2])}),
            old.cluster.figures.publish(old.job, status, remaining=None),
        ):
            with pytest.raises(Fenced, match="epoch 2"):
                await write
        assert stage.status("job")["epoch"] == 2
        await old.api.close()


@on_loop
async def test_operator_without_its_lease_neither_looks_nor_writes(stage):
    async with Side(stage, 1) as side:
        entry = (await side.see()).entries[side.job]
        side.leads = False
        for act in (
            side.cluster.observe(),
            side.cluster.record({side.job: given(entry.status, [0])}),
            side.cluster.launch(PodOrder(entry, given(entry.status, [0]).pods[0])),
            side.cluster.remove(PodKey(side.job, NODE), because="it does not answer"),
            side.cluster.forget(side.job),
        ):
            with pytest.raises(Fenced, match="Lease"):
                await act
        assert stage.pods() == []
        assert "allocation" not in stage.status("job")


@on_loop
async def test_status_of_a_deleted_job_is_kept_without_holding_it(stage):
    async with Side(stage, 1) as side:
        entry = (await side.see()).entries[side.job]
        await side.cluster.record({side.job: given(entry.status, [0, 1])})
        # A user has removed our finalizer; another finalizer still holds the object.
        stage.api.merge(stage.path("job"), {"metadata": {"finalizers": ["example.com/kept"]}})
        stage.api.delete(stage.path("job"))
        await record_given(side, [0])
        assert stage.status("job")["allocation"]["gpus"] == 1
        stage.api.merge(stage.path("job"), {"metadata": {"finalizers": None}})


@on_loop
async def test_pod_is_made_once_and_ends_by_its_kubelets_word(stage):
    async with Side(stage, 1) as side:
        stage.kubelets.silent.add(NODE)
        status = await record_given(side, [0, 1])
        entry = (await side.cluster.observe()).entries[side.job]
        order = PodOrder(entry, status.pods[0])
        await side.cluster.launch(order)
        await side.cluster.launch(order)
        assert [pod["metadata"]["name"] for pod in stage.pods()] == ["job-1"]
        stage.wait(lambda: stage.pods()[0]["spec"].get("nodeName") == NODE)
        # A forced deletion must leave the object.
        stage.api.delete(stage.pod_path("job-1"), gracePeriodSeconds=0)
        (pod,) = stage.pods()
        assert pod["metadata"]["deletionTimestamp"]
        seen = await side.see()
        assert seen.pods[PodKey(side.job, NODE)].phase is PodPhase.PENDING
        await side.dry_runs.close()


@on_loop
async def test_pod_that_was_never_made_is_proven_to_have_ended(stage):
    """The job was deleted meanwhile, so that no later leader makes the pod."""
    async with Side(stage, 1) as old, Side(stage, 2) as new:
        stage.kubelets.silent.add(NODE)
        status = await record_given(old, [0])
        entry = (await old.cluster.observe()).entries[old.job]
        stage.api.delete(stage.path("job"))
        key = PodKey(new.job, NODE)
        assert (await new.see()).pods[key].phase is PodPhase.PENDING
        await new.cluster.stamp()
        await new.cluster.remove(key, because="it is no longer needed")
        seen = (await new.cluster.observe()).pods[key]
        assert (seen.phase, seen.reason) == (PodPhase.ENDED, "NeverUsed")
        # The former leader's last command comes too late; its pod is removed as one without a booking.
        await old.cluster.launch(PodOrder(entry, status.pods[0]))
        assert (await new.see()).pods[key].phase is PodPhase.PENDING
        await new.cluster.remove(key, because="it is no longer needed")
        assert all(pod["metadata"]["deletionTimestamp"] for pod in stage.pods())


@on_loop
async def test_stamp_keeps_the_last_write_of_the_former_leader(stage):
    async with Side(stage, 1) as old, Side(stage, 2) as new:
        status = await record_given(old, [0])
        await new.see()
        # The new leader has seen everything, and has not stamped yet.
        await old.cluster.observe()
        await old.cluster.record({old.job: status.with_used([NODE])})
        await new.cluster.stamp()
        assert stage.status("job")["epoch"] == 2
        assert stage.status("job")["pods"][0]["used"]
        assert (await new.cluster.observe()).entries[new.job].status.used == {1}


@on_loop
async def test_foreign_pod_is_neither_adopted_nor_removed(stage):
    pod = {"metadata": {"name": "job-1"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    stage.api.post(stage.pod_path(), pod)
    async with Side(stage, 1) as side:
        status = await record_given(side, [0])
        entry = (await side.cluster.observe()).entries[side.job]
        with pytest.raises(Exception, match="job-1 already, which does not belong to DLJob"):
            await side.cluster.launch(PodOrder(entry, status.pods[0]))
        await side.see()
        key = PodKey(side.job, NODE)
        await side.cluster.remove(key, because="it is no longer needed")
        assert (await side.cluster.observe()).pods[key].phase is PodPhase.ENDED
        assert "deletionTimestamp" not in stage.pods()[0]["metadata"]


@on_loop
async def test_forgetting_deletes_that_job_only(stage):
    async with Side(stage, 1) as side:
        await record_given(side, [0])
        await side.cluster.forget(side.job)
        stage.wait(lambda: stage.is_gone("job"))
        stage.submit("job")
        await side.cluster.forget(side.job)
        assert not stage.is_gone("job"), "another job of that name"


@on_loop
async def test_job_outlives_its_pods(stage):
    """An administrator who has deleted all jobs may uninstall the operator at once; then it could release no pod."""
    async with Side(stage, 1) as side:
        stage.kubelets.silent.add(NODE)
        status = await record_given(side, [0])
        entry = (await side.cluster.observe()).entries[side.job]
        await side.cluster.launch(PodOrder(entry, status.pods[0]))
        await side.see()
        await side.cluster.forget(side.job)
        assert stage.job("job")["metadata"]["deletionTimestamp"], "but it stays"
        path = stage.pod_path("job-1")
        stage.api.merge(path, {"metadata": {"finalizers": None}})
        await side.see()
        await side.cluster.forget(side.job)
        stage.wait(lambda: stage.is_gone("job"))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {}, {"a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1]}),
        ({"a": [1]}, {"a": [1]}, {}),
    ],
)
def test_only_differences_are_written(old, new, changes):
    assert differences(old, new) == changes
