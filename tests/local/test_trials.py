"""Random histories on one machine lose no iteration that no law demanded; :mod:`tests.local.histories` has the long run."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.local.histories import Planned, draw, is_good, play

pytestmark = pytest.mark.processes

MORE = 800
"""How many more iterations the last job has: alone for seconds, it gets more GPUs also of a slow controller."""


def draw_changing(seed: int) -> Sequence[Planned]:
    *others, last = draw(seed)
    return [*others, replace(last, iterations=last.iterations + MORE)]


@pytest.mark.parametrize("seed", [1, 2])
def test_no_iteration_is_lost_that_no_law_demanded(root, seed):
    outcome = play(root, draw_changing(seed), "max-min")
    assert outcome.lost == 0, outcome.losses
    assert not outcome.stopped()
    assert any(found for name, found in outcome.losses.items() if is_good(name)), "nothing changed"


def test_a_job_whose_file_says_that_a_stop_loses_nothing_loses_work_where_nothing_saves_it(root):
    assert play(root, draw(1), "max-min", trusted=True).lost > 0
