"""An administrator grants priorities above 0."""

import pytest

from dljob.core.placement.limits import NamespaceLimits
from dljob.kube.names import max_priority_of

CLOSED = NamespaceLimits().closed()


def test_ungranted_namespace_has_priority_zero():
    assert CLOSED.priority_of("team-a") == 0
    granted = NamespaceLimits(max_priority={"team-a": 100}).closed()
    assert (granted.priority_of("team-a"), granted.priority_of("team-b")) == (100, 0)
    free = NamespaceLimits(max_priority={"*": 1000}).closed()
    assert free.priority_of("team-b") == 1000


def test_grant_overrides_the_settings():
    granted = CLOSED.granting({"team-a": 50})
    assert (granted.priority_of("team-a"), granted.priority_of("team-b")) == (50, 0)
    lowered = NamespaceLimits(max_priority={"team-a": 100}).closed().granting({"team-a": -5})
    assert lowered.priority_of("team-a") == -5


@pytest.mark.parametrize(
    ("written", "granted"), [("100", 100), ("-1", -1), ("", None), ("high", None), ("1e3", None)]
)
def test_annotation_grants_a_number(written: str, granted: int | None):
    namespace = {"metadata": {"name": "team-a", "annotations": {"dljob.io/max-priority": written}}}
    assert max_priority_of(namespace) == granted
    assert max_priority_of({"metadata": {"name": "team-a"}}) is None
