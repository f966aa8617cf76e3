"""
Answers the questions that kube-scheduler asks an extender: ``filter`` and ``prioritize``.

The documents are those of ``k8s.io/kube-scheduler/extender/v1``. A pod without our label passes unchanged.
Nodes are refused as *unresolvable*, so that kube-scheduler does not preempt other pods: a gang gets resources as a
whole, and not by preemption for one of its pods.
"""

import json
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from dljob.kube.documents import Json
from dljob.kube.names import Name
from dljob.kube.watches.mirror import version_of
from dljob_gangs.book import trimmed
from dljob_gangs.decider import Admitted, Decider
from dljob_gangs.members import Standing, tenant_of
from dljob_gangs.placing import HIGHEST, score
from dljob_gangs.reading import gang_of, is_of_a_gang

TOP_PRIORITY: Final = 10
"""The highest score that an extender may give (``MaxExtenderPriority``)."""
LARGEST_QUESTION: Final = 64 * 1024 * 1024
"""A question with all nodes, from a scheduler that is not configured for an extender with a node cache."""


class NotUnderstood(Exception):
    """The request is not a question of kube-scheduler."""


class GangMetrics:
    """The metrics of the gang scheduler for Prometheus, in a registry of their own."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "dljob_gang_answers_total",
            "Questions of kube-scheduler about pods of gangs, by the answer",
            ["answer"],
            registry=self._registry,
        )
        for answer in ("admitted", "refused"):
            # Export 0 before the first answer.
            self._answers.labels(answer)
        self._gangs = Gauge("dljob_gangs", "Gangs by state", ["standing"], registry=self._registry)
        held = Gauge(
            "dljob_gang_pods_held", "Pods with room kept for them", registry=self._registry
        )
        held.set_function(lambda: float(len(decider.held)))
        self._looks = Counter(
            "dljob_gang_looks_total", "Decisions since the start", registry=self._registry
        )

    def count_answer(self, *, admitted: bool) -> None:
        self._answers.labels("admitted" if admitted else "refused").inc()

    def text(self) -> bytes:
        found = Tally(each.verdict.standing for each in self._decider.standings.values())
        for standing in Standing:
            self._gangs.labels(standing.value).set(found[standing])
        self._looks.reset()
        self._looks.inc(self._decider.decisions)
        return generate_latest(self._registry)


class Extender:
    """The two verbs of the extender."""

    def __init__(
        self,
        decider: Decider,
        metrics: GangMetrics,
        *,
        is_ready: Callable[[], str],
        heard: Callable[[str, bool], None],
    ) -> None:
        self._decider = decider
        self._metrics = metrics
        """
        ``is_ready`` returns why questions cannot be answered yet.

        ``heard`` is called with the uid of each pod that was asked about, and true if it may run.
        """
        self._is_ready = is_ready
        self._heard = heard

    def application(self) -> web.Application:
        application = web.Application(client_max_size=LARGEST_QUESTION)
        application.router.add_post("/filter", self._filter)
        application.router.add_post("/prioritize", self._prioritize)
        return application

    async def _filter(self, request: web.Request) -> web.Response:
        try:
            question = _read(await request.read())
        except NotUnderstood as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        return web.json_response(self.filter(question))

    async def _prioritize(self, request: web.Request) -> web.Response:
        try:
            question = _read(await request.read())
        except NotUnderstood as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        return web.json_response(self.prioritize(question))

    def filter(self, question: Json) -> dict[str, Any]:
        """Answer which of these nodes a pod may run on."""
        pod, nodes = question["Pod"], _node_names(question)
        if not is_of_a_gang(pod):
            return _passing(question, nodes, refused={})
        if why := self._is_ready():
            # After an error kube-scheduler retries; after a refusal it would wait for a change.
            return {"Error": f"the gang scheduler is not ready: {why}"}
        # kube-scheduler may know a newer version of the pod than our watch.
        self._decider.book.pods.show(trimmed(pod))
        # Do not await before the answer: kube-scheduler asks about other pods meanwhile, and the
        # reservation must exist before their answers.
        nominated = (pod.get("status") or {}).get("nominatedNodeName")
        answer = self._decider.ask(Name.of(pod), nodes, tells_all=nodes != [nominated])
        self._metrics.count_answer(admitted=isinstance(answer, Admitted))
        self._heard(pod["metadata"]["uid"], isinstance(answer, Admitted))
        if isinstance(answer, Admitted):
            others = {
                node: f"node {answer.node} is kept for the pod"
                for node in nodes
                if node != answer.node
            }
            return _passing(question, [answer.node], refused=others)
        return _passing(question, [], refused=dict.fromkeys(nodes, answer.why))

    def prioritize(self, question: Json) -> list[dict[str, Any]]:
        """Score these nodes for a pod, by Algorithm 3."""
        pod = question["Pod"]
        own = tenant_of(gang_of(pod)) if is_of_a_gang(pod) else ""
        tenants = self._decider.book.world().tenants
        return [
            {"Host": node, "Score": score(tenants.get(node, ()), own) * TOP_PRIORITY // HIGHEST}
            for node in _node_names(question)
        ]


def _read(body: bytes) -> Json:
    try:
        question = json.loads(body)
        version_of(question["Pod"])
        _ = question["Pod"]["metadata"]["namespace"], question["Pod"]["metadata"]["uid"]
        _node_names(question)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotUnderstood(
            "this is not what kube-scheduler asks of an extender: a JSON object with Pod, and NodeNames"
            " or Nodes"
        ) from error
    found: Json = question
    return found


def _node_names(question: Json) -> list[str]:
    names = question.get("NodeNames")
    if names is not None:
        return [str(name) for name in names]
    nodes = question.get("Nodes") or {}
    return [each["metadata"]["name"] for each in nodes.get("items") or ()]


def _passing(question: Json, names: list[str], *, refused: Mapping[str, str]) -> dict[str, Any]:
    """Answer in the form of the question: node names, or whole nodes."""
    answer: dict[str, Any] = {"FailedAndUnresolvableNodes": dict(refused), "Error": ""}
    if question.get("NodeNames") is not None:
        return answer | {"NodeNames": names}
    passed = set(names)
    items = (question.get("Nodes") or {}).get("items") or ()
    return answer | {"Nodes": {"items": [i for i in items if i["metadata"]["name"] in passed]}}
