"""Which questions about a user are asked, and in which order."""

import asyncio

import pytest

from dljob.kube.client import ApiServer
from dljob.kube.reviews import Reviews, User
from dljob_web.portal.rights import LIST_NODES, Rights, explain_withheld, list_jobs_in, read_rights


class Allowed(ApiServer):
    """An API server that answers reviews by a list of what is allowed."""

    def __init__(self, *acts):
        self.acts = acts

    async def create(self, resource, document, namespace="", *, dry_run=False, strict=False):
        asked = document["spec"]["resourceAttributes"]
        allowed = any(act.attributes()["resourceAttributes"] == asked for act in self.acts)
        return {"status": {"allowed": allowed}}


def read(*acts):
    listed = []

    async def list_namespaces():
        listed.append(1)
        return {"red", "blue", ""}

    async def ask():
        return await read_rights(
            Reviews(Allowed(*acts)), User("someone"), list_namespaces=list_namespaces
        )

    return asyncio.run(ask()), len(listed)


def test_view_of_all_jobs_needs_no_namespaces():
    assert read(LIST_NODES, list_jobs_in()) == (Rights(None, nodes=True), 0)


def test_each_namespace_is_asked_for_where_not_all_are_seen():
    assert read(list_jobs_in("red")) == (Rights(frozenset({"red"}), nodes=False), 1)


def test_full_view_gets_futures():
    assert explain_withheld(Rights(None, nodes=True)) == ""


@pytest.mark.parametrize(
    ("rights", "missing"),
    [
        (Rights(None, nodes=False), "may not list nodes;"),
        (Rights(frozenset({"red"}), nodes=True), "may not list DLJobs in all namespaces;"),
        (Rights(frozenset({"red"}), nodes=False), "may not list DLJobs in all namespaces;"),
        (Rights(frozenset(), nodes=True), "may not list DLJobs in all namespaces;"),
    ],
)
def test_partial_view_learns_the_missing_right(rights, missing):
    told = explain_withheld(rights)
    assert missing in told
    assert "ClusterRoleBinding" in told
    assert "red" not in told
