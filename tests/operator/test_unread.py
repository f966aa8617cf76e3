"""Unreadable foreign documents are skipped and reported once."""

import asyncio
import json

import pytest

from dljob.control.situation.status_documents import read_status
from dljob.core.placement.amounts import LARGEST, read_amount
from dljob.kube.client import ApiServer
from dljob.kube.documents import CUT, DEEPEST, parse
from dljob.kube.unread import MOST_REPORTED, Unread
from dljob.kube.watches.mirror import Mirrors
from dljob.operator.nodes.other_pods import OtherPods
from dljob_gangs.book import Book


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("1e999999", LARGEST),
        ("-1e999999", -LARGEST),
        ("9" * 100, LARGEST),
        ("1e99999999999999999999", LARGEST),
        ("9223372036854775807", LARGEST),
        ("16E", LARGEST),
        ("1e-999999", 1),
        ("1e-99999999999999999999", 1),
        ("0e999999", 0),
        ("0." + "0" * 90 + "1e100", 10**12),
    ],
)
def test_absurd_amount_counts_as_the_largest(text, thousandths):
    assert read_amount(text) == thousandths


def pod(name, cpu, **metadata):
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"namespace": "n", "name": name, "uid": name, "resourceVersion": "1", **metadata}
    return {"metadata": metadata, "spec": {"containers": [container], "nodeName": "node"}}


class Server(ApiServer):
    """An API server with one page of pods."""

    def __init__(self, pods):
        self._pods = pods

    async def pages(self, resource, namespace="", *, labels="", fields=""):
        items = self._pods if resource.plural == "pods" else []
        yield type("Page", (), {"items": items, "version": "1"})()


def test_unreadable_pod_is_reported_once_and_skipped(caplog):
    mirrors = Mirrors()
    pods = [pod("odd", "9" * 200), pod("plain", "2"), pod("most", "1e999999")]
    other_pods = OtherPods(Server(pods), mirrors)

    async def see() -> None:
        for _ in range(3):
            await other_pods.list_all()

    asyncio.run(see())
    assert mirrors.others.pods.on("node")["cpu"] == LARGEST + 2000
    assert len([each for each in caplog.records if "Pod n/odd" in each.message]) == 1


def test_endlessly_nested_roles_do_not_end_the_extender():
    book = Book("dljob-scheduler")
    for depth in (10, 900, 200_000):
        annotations = {"dljob.io/gang-roles": "[" * depth + "]" * depth}
        labels = {"dljob.io/gang": "g"}
        book.pods.show(pod(f"p{depth}", "1", annotations=annotations, labels=labels))
    assert len(book.wrong) == 3
    assert book.world().free == {}


def test_number_of_reports_is_bounded(caplog):
    unread = Unread()
    for number in range(2 * MOST_REPORTED):
        for _ in range(2):
            unread.attempt(f"Pod {number}", lambda: int("odd"), otherwise=None)
    assert len(caplog.records) == MOST_REPORTED


@pytest.mark.parametrize("depth", [DEEPEST + 1, 3000, 10_000])
def test_too_deep_nesting_is_cut_and_neighbours_stay(depth):
    deep = '{"a":["]}\\"[{",' * depth + "1" + "]}" * depth
    text = (
        f'{{"items": [{{"name": "one"}}, {{"name": "two", "spec": {deep}}}, {{"name": "three"}}]}}'
    )
    items = parse(text.encode())["items"]
    assert [each["name"] for each in items] == ["one", "two", "three"]
    assert CUT in json.dumps(items) or depth < 500


def test_foreign_status_is_read_where_it_makes_sense():
    status = read_status(
        {
            "phase": "Running",
            "startedAt": "2026-13-45T99:99:99Z",
            "submittedAt": "0001-01-01T00:00:00+14:00",
            "cause": {"code": "Nonsense"},
            "conditions": [{"type": "Nonsense", "status": "True", "reason": "R", "message": ""}],
            "allocation": {"nodes": [{"name": "x", "gpuIds": [1]}]},
        }
    )
    assert (status.started_at, status.cause, status.conditions) == (None, None, ())
    assert status.placement is not None
