"""A definition that is older than the operator is noticed before anything is written to it."""

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
    """Our definition, as it was before it had this field."""
    document = copy.deepcopy(crd.definition())
    part = version(document)
    for name in path[:-1]:
        part = part[name]
    del part[path[-1]]
    return document


def test_what_is_missing_is_named_wherever_it_is():
    pods = ("status", "properties", "pods")
    assert find_missing(without(*pods)) == ["status.pods"]
    assert find_missing(without(*pods, "items", "properties", "serial")) == ["status.pods[].serial"]
    options = ("spec", "properties", "gpus", "properties", "options")
    assert find_missing(without(*options)) == ["spec.gpus.options"]


def test_fields_that_only_the_installed_one_has_are_none_of_our_business():
    newer = copy.deepcopy(crd.definition())
    version(newer)["status"]["properties"]["future"] = {"type": "string"}
    assert find_missing(newer) == []


class Api:
    """An API server that does not give the definition."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def get(self, *_):
        raise Rejected(self.status, {"message": "not now, or never"})


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_an_operator_does_not_lead_because_the_definition_could_not_be_read_for_a_moment(status):
    api: Any = Api(status)
    with pytest.raises(Rejected):
        asyncio.run(check(api))


def test_an_operator_that_may_not_read_the_definition_says_so():
    api: Any = Api(403)
    found = asyncio.run(check(api))
    assert "it is not known whether" in found.remark
    assert found.uid == ""
