"""Real trainings under the policies of papers, on a real control plane."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dljob.client.cluster.reading import past
from tests.operator.stages import Stage
from tests.policy_stories import STORIES, Json

pytestmark = [pytest.mark.cluster, pytest.mark.processes]


class Cluster:
    """A cluster, as the stories see it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def submit(self, name: str, *, iterations: int, **spec: Any) -> None:
        self._stage.submit(name, iterations=iterations, **spec)

    def cancel(self, name: str) -> None:
        self._stage.api.delete(self._stage.path(name))

    def status(self, name: str) -> Json:
        return self._stage.status(name)

    def history(self, name: str) -> Sequence[Json]:
        return past.list_history(self.status(name), (), job=name)

    def find_told(self, name: str, variable: str) -> set[str]:
        kubelets = self._stage.kubelets
        names = [each["metadata"]["name"] for each in self._stage.pods_of(name)]
        told = (kubelets.told(each, variable) for each in names if each in kubelets.pids())
        return set().union(*told)

    def wait(self, what: Callable[[], object]) -> Any:
        return self._stage.wait(what)


@pytest.mark.parametrize("name", STORIES)
def test_policy_makes_its_own_move(stage, name):
    policy, tell = STORIES[name]
    stage.start_operator(settings={"policy": policy})
    tell(Cluster(stage))
