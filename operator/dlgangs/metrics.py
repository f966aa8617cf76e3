"""The metrics of the gang scheduler, for Prometheus."""

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from dlgangs.decider import Decider
from dlgangs.verdicts import Standing


class GangMetrics:
    """Counts; a registry of its own."""

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
            # So that what has not happened yet is seen to be nought.
            self._answers.labels(answer)
        self._gangs = Gauge("dljob_gangs", "Gangs by state", ["standing"], registry=self._registry)
        held = Gauge(
            "dljob_gang_pods_held", "Pods with room kept for them", registry=self._registry
        )
        held.set_function(lambda: float(len(decider.held)))
        looks = Gauge("dljob_gang_looks", "Decisions since the start", registry=self._registry)
        looks.set_function(lambda: float(decider.decisions))

    def count_answer(self, *, admitted: bool) -> None:
        self._answers.labels("admitted" if admitted else "refused").inc()

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        found = Tally(each.verdict.standing for each in self._decider.standings.values())
        for standing in Standing:
            self._gangs.labels(standing.value).set(found[standing])
        return generate_latest(self._registry)
