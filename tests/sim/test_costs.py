"""The cost of a change by default, and with explicit costs."""

import pytest

from dljob.sim.engine.controlling.costs import DEFAULT_COSTS, costs_of_change
from dljob_lab.reproducing.sidecar.constants import FROZEN


@pytest.mark.parametrize("gpus", [1, 3, 64])
def test_defaults_match_the_case_study(gpus):
    assert DEFAULT_COSTS.pod_start(gpus) == FROZEN.costs.pod_start(3)
    assert DEFAULT_COSTS.process_restart(gpus) == FROZEN.costs.process_restart(3) == 30.0
    assert DEFAULT_COSTS.pod_restart(gpus) == FROZEN.costs.pod_restart(3) == 216.0


def test_explicit_cost_covers_changes_and_first_start():
    costs = costs_of_change(30.0)
    assert costs.process_restart(4) == costs.pod_restart(4) == 30.0
    assert costs.pod_start(4) + costs.process_start(4) == 30.0
    assert costs.process_stop + costs.pod_termination == 0.0
