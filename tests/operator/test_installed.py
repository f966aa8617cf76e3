"""The operator writes nothing to a definition that is older than itself."""

import asyncio
import copy
from typing import Any

import pytest

from dljob.kube.client import Rejected
from dljob.operator.jobs import crd
from dljob.operator.jobs.crd import check, find_missing


def version(document):
    return document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def without(*path):
    """The definition without one of its fields."""
    document = copy.deepcopy(crd.definition())
    part = version(document)
    for name in path[:-1]:
        part = part[name]
    del part[path[-1]]
    return document


def test_missing_fields_are_named():
    pods = ("status", "properties", "pods")
    assert find_missing(without(*pods)) == ["status.pods"]
    assert find_missing(without(*pods, "items", "properties", "serial")) == ["status.pods[].serial"]
    options = ("spec", "properties", "gpus", "properties", "options")
    assert find_missing(without(*options)) == ["spec.gpus.options"]


def test_fields_of_a_newer_definition_do_not_matter():
    newer = copy.deepcopy(crd.definition())
    version(newer)["status"]["properties"]["future"] = {"type": "string"}
    assert find_missing(newer) == []


class Api:
    """An API server that refuses to show the definition."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def get(self, *_):
        raise Rejected(self.status, {"message": "not now, or never"})


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_passing_error_prevents_leading(status):
    api: Any = Api(status)
    with pytest.raises(Rejected):
        asyncio.run(check(api))


def test_operator_without_read_access_says_so():
    api: Any = Api(403)
    found = asyncio.run(check(api))
    assert "it is not known whether" in found.remark
    assert found.uid == ""
