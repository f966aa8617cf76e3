"""The short form of the attacks on one machine: its state folder, clock and disk."""

import pytest

from tests.attack import clocks, damages, disks
from tests.attack.counts import Size

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("part", [damages, clocks, disks], ids=lambda part: part.__name__)
def test_no_attack_breaks_a_law(part):
    count = part.run(Size.SHORT)
    if count.skipped:
        pytest.skip(count.skipped)
    assert count.tried > 0
    assert count.broken == []
