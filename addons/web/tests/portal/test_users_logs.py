"""A job's output on the page: read from the API server with the token of the user who looks."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web
from kubernetes.client import Configuration

from dljob.client.cluster.connecting import Connection
from dljob.kube.access import Access
from dljob_web.answering import SourceError
from dljob_web.portal.rights import Rights
from dljob_web.portal.source import Narrowed, Whole
from dljob_web.sources import MOST_LINES
from tests.ctl.cluster.test_planned import running

ADA = "token-of-ada"
POD = {
    "metadata": {"name": "a-1", "labels": {}},
    "spec": {"nodeName": "n1"},
    "status": {"containerStatuses": [{"name": "trainer", "restartCount": 0}]},
}


class Plane:
    """An API server that has one job, and notes the tokens of its callers."""

    def __init__(self) -> None:
        self.pods = [POD]
        self.output = b""
        self.problem: tuple[int, str] | None = None
        self.tokens: set[str] = set()
        self.asked: dict[str, str] = {}

    async def answer(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization", ""))
        if request.path.endswith("/log"):
            self.asked = dict(request.query)
            if self.problem is not None:
                status, message = self.problem
                return web.json_response({"message": message, "reason": "Other"}, status=status)
            return web.Response(body=self.output)
        if request.path.endswith("/pods"):
            return web.json_response({"items": self.pods, "metadata": {"resourceVersion": "1"}})
        return web.json_response(running("a", 0, 1))


@contextmanager
def served(plane: Plane) -> Iterator[str]:
    """Serve it on a loop of its own, because the portal's reading blocks."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(web.Application())
    runner.app.router.add_get("/{path:.*}", plane.answer)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(runner.cleanup())
        loop.close()


@pytest.fixture
def plane():
    return Plane()


@pytest.fixture
def read(plane):
    with served(plane) as address:
        own = Configuration(host=address)
        own.api_key["authorization"] = "Bearer token-of-the-portal"
        whole = Whole(Connection(Access(own), "home"), "")
        source = Narrowed(whole, Rights(frozenset({"ns"}), nodes=False))
        yield lambda name, node="", token=ADA: source.read_log(name, node=node, token=token)


def test_the_last_lines_are_read_in_the_users_name_alone(plane, read):
    plane.output = b"".join(b"step %d\n" % number for number in range(500)) + b"\x1b[2J</pre>"
    told = read("ns/a")
    assert (told["job"], told["node"], told["nodes"]) == ("ns/a", "n1", ["n1"])
    assert told["lines"][-2:] == ["step 499", "\\u001b[2J</pre>"]
    assert len(told["lines"]) == MOST_LINES
    assert plane.tokens == {f"Bearer {ADA}"}
    assert plane.asked == {"container": "trainer", "tailLines": "200", "limitBytes": "4194304"}


def test_no_credentials_of_the_portal_go_along():
    own = Configuration(host="https://api")
    own.ssl_ca_cert, own.cert_file, own.key_file = "ca", "certificate", "key"
    own.api_key["authorization"] = "Bearer token-of-the-portal"
    users = Access(own).for_user(ADA)
    assert users.headers() == {"Authorization": f"Bearer {ADA}"}
    configuration = users.configuration
    assert (configuration.host, configuration.ssl_ca_cert) == ("https://api", "ca")
    assert (configuration.cert_file, configuration.key_file) == (None, None)


def test_jobs_that_may_not_be_seen_are_not_asked_for(plane, read):
    with pytest.raises(SourceError, match="there is no such job that you may see"):
        read("other/a")
    assert plane.tokens == set()


def test_without_a_token_of_the_user_nothing_is_read_in_the_name_of_the_portal(plane, read):
    with pytest.raises(SourceError, match="a proxy has logged you in") as refused:
        read("ns/a", token="")
    assert (refused.value.status, plane.tokens) == (403, set())


FORBIDDEN = (
    'pods "a-1" is forbidden: User "ada" cannot get resource "pods/log" in API group "" in the'
    ' namespace "ns"'
)


@pytest.mark.parametrize(
    ("problem", "status", "told"),
    [
        (
            (403, FORBIDDEN),
            403,
            "ada may not get pods/log in namespace ns; ask for a RoleBinding there to the ClusterRole view",
        ),
        ((500, "dial tcp 10.0.0.7:10250: no route to host"), 502, "no route to host"),
    ],
)
def test_a_refusal_names_the_missing_right_or_the_problem(plane, read, problem, status, told):
    plane.problem = problem
    with pytest.raises(SourceError) as refused:
        read("ns/a")
    assert refused.value.status == status
    assert told in str(refused.value)


def test_without_output_the_reason_is_shown(plane, read):
    assert read("ns/a")["reason"] == "ns/a has written nothing on n1 yet"
    plane.problem = (400, "container trainer is waiting to start")
    assert read("ns/a")["lines"] == []
