"""The table of GPUs fits into objects of 1 MiB, changes one of them per node, and is read first."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.control.gpus.faults import GpuFaults
from dljob.control.gpus.uuids import GpuUuids
from dljob.kube import names
from dljob.kube.client import NotFound, Rejected
from dljob.operator import leading
from dljob.operator.leading import Leading
from dljob.operator.reporting.gpu_configmap import MOST_BYTES, GpuConfigMap, split

OBJECT_BYTES = 1024 * 1024


def table(nodes: int) -> dict[str, str]:
    """The table of nodes with eight GPUs each, half of which are out of service."""
    told = {}
    for number in range(nodes):
        uuids = {str(gpu): f"GPU-{number:08x}-0000-0000-0000-{gpu:012x}" for gpu in range(8)}
        out = {
            str(gpu): "its release is not proven, since node-1 does not answer" for gpu in range(4)
        }
        told[f"gpu-node-{number}.example"] = json.dumps({"uuids": uuids, "out": out})
    return told


@pytest.mark.parametrize(("nodes", "parts"), [(0, 1), (1, 1), (400, 1), (5000, 16)])
def test_table_is_split_into_few_objects(nodes, parts):
    told = table(nodes)
    texts = split(told)
    assert len(texts) == parts
    assert parts <= len(names.GPUS_PARTS)
    assert all(len(text.encode()) < OBJECT_BYTES for text in texts)
    found: dict[str, object] = {}
    for text in texts:
        found |= json.loads(text)
    assert found == {name: json.loads(each) for name, each in told.items()}


def test_change_of_one_node_changes_one_object():
    told = table(2 * MOST_BYTES // len(json.dumps(table(1))))
    before = split(told)
    name = next(iter(told))
    after = split(told | {name: told[name].replace("does not answer", "does never answer")})
    assert len(before) > 1
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


FAULT = {"gpu": "node/3", "xids": [["sidecar", 79]]}


class Api:
    """An API server with the ConfigMaps of a former operator, and errors at first."""

    def __init__(self, *first: Rejected) -> None:
        faults = {"faults": [FAULT]}
        self.kept = {
            names.GPUS_PARTS[0]: {
                names.GPUS_KEY: json.dumps({"node": {"uuids": {"0": "GPU-0"}}}),
                names.GPUS_PARTS_KEY: "4",
                names.FAULTS_KEY: json.dumps(faults),
            },
            names.GPUS_PARTS[1]: {names.GPUS_KEY: "{}"},
            names.GPUS_PARTS[3]: {names.GPUS_KEY: json.dumps({"other": {"uuids": {"0": "GPU-1"}}})},
        }
        self.answers = list(first)
        self.written: list[str] = []

    async def get(self, _resource, name, _namespace):
        if self.answers:
            raise self.answers.pop(0)
        if name not in self.kept:
            raise NotFound(404, {"message": f"no {name}"})
        return {"data": self.kept[name]}

    async def apply(self, _resource, document, *, namespace):
        self.written.append(document["metadata"]["name"])
        self.kept[document["metadata"]["name"]] = document["data"]


class Office:
    """A new leader's knowledge of GPUs, and its takeover."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.gpu_faults, self.gpu_uuids = GpuFaults(), GpuUuids()
        scene = SimpleNamespace(nodes={})
        observer = SimpleNamespace(gpu_faults=self.gpu_faults, gpu_uuids=self.gpu_uuids, faults={})
        controller: Any = SimpleNamespace(observer=observer, scene=scene)
        server: Any = api
        self.bulletin = GpuConfigMap(server, "home", controller=controller)
        election: Any = SimpleNamespace(is_leading=True)
        self.leading = Leading.__new__(Leading)
        self.leading._gpu_config_map = self.bulletin
        self.leading._election = election

    async def take_over(self) -> None:
        await self.leading._recall()
        running = asyncio.create_task(self.bulletin.run())
        for _ in range(10):
            await asyncio.sleep(0)
        running.cancel()

    @property
    def faults(self) -> list[str]:
        return [str(ref) for ref in self.gpu_faults.faults]

    @property
    def kept_faults(self) -> object:
        return json.loads(self.api.kept[names.GPUS][names.FAULTS_KEY])["faults"]


@pytest.mark.parametrize("answers", [0, 1, 3])
@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_fault_outlives_passing_api_errors(monkeypatch, answers, status):
    monkeypatch.setattr(leading, "AGAIN_S", 0.0)
    office = Office(Api(*[Rejected(status, {"message": "not now"}) for _ in range(answers)]))
    asyncio.run(asyncio.wait_for(office.take_over(), 240.0))
    assert office.faults == ["node/3"]
    assert office.kept_faults == [FAULT]


def test_unreadable_table_is_not_overwritten(caplog):
    office = Office(Api(Rejected(403, {"message": "forbidden"})))
    asyncio.run(asyncio.wait_for(office.take_over(), 240.0))
    assert office.faults == []
    assert office.api.written == []
    assert office.kept_faults == [FAULT]
    assert "grant get on the ConfigMaps dljob-gpus*" in caplog.text
