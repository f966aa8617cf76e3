"""
``dljob up`` that dies at its system calls: the nursery of :mod:`tests.attack.deaths`.

As :mod:`tests.chaos.controllers`, which names points in our code; here nothing of the code is touched, and the
kernel stops the controller before and after each call that other processes can see. Kinds of calls at
which few have died are drawn more readily.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from dlsidecar.linux.kernel import die_with_parent
from tests.attack.tracing import Call, be_traced, trace
from tests.chaos.controllers import Order, live
from tests.chaos.points import Plan

MOST_LIKELY = 0.3
LEAST_LIKELY = 0.001
CALLS_A_POINT = 6
"""The number of calls for each point that :mod:`tests.chaos` passes."""


class Draw:
    """Draws at which call a controller dies."""

    def __init__(self, plan: Plan, deaths: Path) -> None:
        self._plan = plan
        self._deaths = deaths
        self._chance = random.Random(plan.seed)
        self._passed = 0
        self._before = Counter(dict(plan.deaths))
        self._is_dead = False

    def __call__(self, call: Call) -> bool:
        """Whether this one is the last."""
        self._passed += 1
        if self._plan.is_calm or self._is_dead or self._passed <= CALLS_A_POINT * self._plan.spares:
            return False
        likelihood = MOST_LIKELY / (1 + self._before[str(call)]) ** 2
        if self._chance.random() >= max(LEAST_LIKELY, likelihood):
            return False
        self._deaths.write_text(str(call))
        self._is_dead = True
        return True


def serve() -> None:
    """Fork a controller for each line, and say what became of it."""
    die_with_parent(signal.SIGKILL)
    for line in sys.stdin:
        order = Order.read(line)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            if not order.plan.is_calm:
                be_traced()
            os._exit(live(replace(order, plan=Plan(seed=0, is_calm=True))))
        print(json.dumps(child), flush=True)  # noqa: T201 - the answer
        if order.plan.is_calm:
            _, status = os.waitpid(child, 0)
        else:
            status = trace(child, Draw(order.plan, Path(order.deaths)))
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
