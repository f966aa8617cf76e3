"""Problems with one job's pods do not keep the operator from the pods of other jobs."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from dljob.core.documents.rules.podrules import TRAINER
from dljob.kube import access, names
from dljob.kube.client import ApiServer, NotFound, Rejected
from dljob.kube.documents import JsonObject as Json
from dljob.kube.names import Name
from dljob.kube.resources import DLJOBS, PODS
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.cluster import ClusterSettings
from dljob.operator.jobs.entries import Specs
from dljob.operator.nodes.ownership import OwnershipRules
from dljob.operator.nodes.reserving import Reservations
from dljob.operator.pods.auxiliaries import NOT_MADE, Auxiliaries
from dljob.operator.pods.cleanup import GONE_S, NOT_PUT_AWAY, Cleanup
from dljob.operator.podspecs.podsettings import PodSettings
from tests.operator.leaders import trusting
from tests.operator.manifests import make_manifest
from tests.servers.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

BOOKED = {"pods": [{"node": "node-1", "serial": 1}]}


def with_servers(name: str, image: str) -> Json:
    """A job with two servers; without an image Kubernetes refuses their pods."""
    container = {"name": "ps", "command": ["serve"]} | ({"image": image} if image else {})
    role = {"name": "ps", "replicas": 2, "template": {"spec": {"containers": [container]}}}
    return make_manifest(name, auxiliaries=[role])


def pod_of(job: str, role: str, **metadata: Any) -> Json:
    return {
        "metadata": {
            "name": f"{job}-left",
            "labels": {names.JOB_LABEL: job, names.ROLE_LABEL: role, names.SERIAL_LABEL: "9"},
            **metadata,
        },
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    }


def owner(job: Json) -> Json:
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }


class Look:
    """The tested parts on a real API server."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.mirrors = Mirrors()
        self.warned: list[tuple[str, str]] = []
        self.messages: list[str] = []
        self.now = 0.0

    def warn(self, about: Mapping[str, Any], reason: str, message: str) -> None:
        assert message
        self.warned.append((about["metadata"]["name"], reason))
        self.messages.append(message)

    async def submit(self, job: Json) -> Json:
        made = await self.api.create(DLJOBS, job, self.namespace)
        self.mirrors.jobs.show({**made, "status": BOOKED})
        return made

    def make_cleanup(self) -> Cleanup:
        pool = ClusterSettings().pool
        rules = OwnershipRules(PodSettings().taint, "nvidia")
        reservations = Reservations(
            self.api,
            self.mirrors,
            jobs=trusting(self.mirrors),
            namespace=self.namespace,
            pool=pool,
            rules=rules,
        )
        return Cleanup(
            self.api,
            self.mirrors,
            jobs=trusting(self.mirrors),
            changed=asyncio.Event(),
            specs=Specs(),
            reservations=reservations,
            warn=self.warn,
            clock=lambda: self.now,
        )

    def make_auxiliaries(self) -> Auxiliaries:
        return Auxiliaries(
            self.api,
            self.mirrors,
            jobs=trusting(self.mirrors),
            specs=Specs(),
            warn=self.warn,
            clock=lambda: self.now,
        )

    async def names(self) -> set[str]:
        listing = await self.api.list(PODS, self.namespace)
        there = (pod["metadata"] for pod in listing.items)
        return {each["name"] for each in there if "deletionTimestamp" not in each}


def count_creations(api: ApiServer) -> list[str]:
    """Record the names of all objects that the server is asked to create."""
    asked: list[str] = []
    create = api.create

    async def counted(resource: Any, document: Json, *place: Any, **more: Any) -> Json:
        asked.append(document["metadata"]["name"])
        return await create(resource, document, *place, **more)

    api.create = counted  # type: ignore[assignment,method-assign]
    return asked


def play(cluster: ControlPlane, namespace: str, story: Any) -> None:
    async def begin() -> None:
        api = ApiServer(access.find(str(cluster.admin)))
        try:
            await story(Look(api, namespace))
        finally:
            await api.close()

    asyncio.run(begin())


def test_refused_pods_are_reported_once_and_others_made(cluster: ControlPlane, namespace: str):
    async def story(look: Look) -> None:
        for name, image in (("a-wrong", ""), ("b-right", "ps"), ("c-wrong", "")):
            await look.submit(with_servers(name, image))
        auxiliaries = look.make_auxiliaries()
        for _ in range(3):
            assert not await auxiliaries.reconcile()
            assert await look.names() == {"b-right-ps-0", "b-right-ps-1"}
        assert sorted(look.warned) == [("a-wrong", NOT_MADE), ("c-wrong", NOT_MADE)]

    play(cluster, namespace, story)


def test_name_conflict_backs_off(cluster: ControlPlane, namespace: str):
    async def story(look: Look) -> None:
        theirs = pod_of("theirs", "ps", name="job-ps-0")
        del theirs["metadata"]["labels"]
        uid = (await look.api.create(PODS, theirs, namespace))["metadata"]["uid"]
        await look.submit(with_servers("job", "ps"))
        asked = count_creations(look.api)
        auxiliaries = look.make_auxiliaries()
        when = []
        for second in range(20):
            look.now, before = float(second), len(asked)
            assert not await auxiliaries.reconcile()
            when += [second] * (len(asked) - before)
        assert when == [0, 1, 3, 7, 15]
        assert look.warned == [("job", NOT_MADE)]
        assert "the name is taken by a pod of another owner" in look.messages[0]
        await look.api.delete(PODS, "job-ps-0", namespace, uid=uid)
        while "job-ps-0" in await look.names():
            await asyncio.sleep(0.05)
        look.now = 100.0
        assert await auxiliaries.reconcile()
        assert await look.names() == {"job-ps-0", "job-ps-1"}

    play(cluster, namespace, story)


def test_failed_cleanup_of_one_pod_stops_no_other(
    cluster: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture
):
    async def story(look: Look) -> None:
        job = await look.submit(make_manifest("job"))
        # An impossible document of a broken server: an owner without a uid.
        strange = pod_of(
            "job", TRAINER, name="a", namespace=namespace, uid="1", resourceVersion="1"
        )
        strange["metadata"]["ownerReferences"] = [{"kind": names.KIND}]
        look.mirrors.pods.show(strange)
        left = pod_of("job", TRAINER, ownerReferences=[owner(job)])
        made = await look.api.create(PODS, left, namespace)
        look.mirrors.pods.show(made)
        cleanup = look.make_cleanup()
        for _ in range(2):
            assert not await cleanup.clean_up()
        with pytest.raises(NotFound):
            await look.api.get(PODS, "job-left", namespace)
        assert Name(namespace, "a") in look.mirrors.pods.objects

    with caplog.at_level(logging.ERROR):
        play(cluster, namespace, story)
    assert len(caplog.records) == 1, "logged once"


def test_pod_is_released_although_its_deletion_is_refused(cluster: ControlPlane, namespace: str):
    """Its job waits for the release."""

    async def refuse(*_: Any, **__: Any) -> None:
        raise Rejected(403, {"message": "pods cannot be deleted here"})

    async def story(look: Look) -> None:
        job = await look.submit(make_manifest("job"))
        held = {"ownerReferences": [owner(job)], "finalizers": [names.PROOF_FINALIZER]}
        left = pod_of("job", TRAINER, **held)
        # A node that stays missing for a while proves the end.
        left["spec"]["nodeName"] = "nowhere"
        look.mirrors.pods.show(await look.api.create(PODS, left, namespace))
        look.api.delete = refuse  # type: ignore[method-assign]
        cleanup = look.make_cleanup()
        assert not await cleanup.clean_up()
        pod = await look.api.get(PODS, "job-left", namespace)
        assert pod["metadata"]["finalizers"] == [names.PROOF_FINALIZER]
        look.now += GONE_S
        assert not await cleanup.clean_up()
        pod = await look.api.get(PODS, "job-left", namespace)
        assert "finalizers" not in pod["metadata"]
        assert look.warned == [("job", NOT_PUT_AWAY)]
        assert "pods cannot be deleted here" in look.messages[0]

    play(cluster, namespace, story)
