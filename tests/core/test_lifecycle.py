"""The table of phases: every phase against every event, and what the table as a whole keeps."""

import itertools

import pytest

from dljob.core.lifecycle import BEGIN, FINAL, TABLE, Event, IllegalEvent, advance, draw
from dljob.core.model import Phase

# Said once more, in another form than in the module, so that a slip in the table is seen.
EXPECTED = {
    #                  Submitted    Queued       Initialized  Running      Adjusting    Suspended
    Event.PASSED_OVER: "Queued       Queued       -            -            -            -",
    Event.PLACED: "     Initialized  Initialized  Initialized  -            -            -",
    Event.STARTED: "    -            -            Running      Running      Running      -",
    Event.CHANGED: "    -            -            Initialized  Adjusting    Adjusting    -",
    Event.DISPLACED: "  -            Queued       Queued       Queued       Queued       Suspended",
    Event.CRASHED: "    -            Queued       Initialized  Initialized  Initialized  Suspended",
    Event.SUSPENDED: "  Suspended    Suspended    Suspended    Suspended    Suspended    Suspended",
    Event.RESUMED: "    -            -            -            -            -            Queued",
    Event.FINISHED: "   -            Completed    Completed    Completed    Completed    Completed",
    Event.FAILED: "     Failed       Failed       Failed       Failed       Failed       Failed",
}
OPEN_PHASES = ("Submitted", "Queued", "Initialized", "Running", "Adjusting", "Suspended")


def expected_end(phase: Phase, event: Event) -> str:
    if phase in FINAL:
        told_again = {Phase.COMPLETED: Event.FINISHED, Phase.FAILED: Event.FAILED}[phase]
        return phase.value if event is told_again else "-"
    return EXPECTED[event].split()[OPEN_PHASES.index(phase.value)]


def test_every_event_in_every_phase_leads_where_it_should_or_is_refused():
    for phase, event in itertools.product(Phase, Event):
        end = expected_end(phase, event)
        if end == "-":
            with pytest.raises(IllegalEvent) as caught:
                advance(phase, event)
            assert (caught.value.phase, caught.value.event) == (phase, event)
            assert f"{event.name} cannot happen to a job that is {phase.value}" in str(caught.value)
            continue
        once = advance(phase, event)
        assert once is Phase(end)
        # News may come twice, but for a change of a field of the spec.
        assert event is Event.RESUMED or advance(once, event) is once


def test_a_final_phase_has_no_way_out_and_the_others_can_reach_both():
    assert {Phase.COMPLETED, Phase.FAILED} == FINAL
    for phase in set(Phase) - FINAL:
        assert reachable(phase) >= FINAL


def test_every_phase_can_be_reached_from_the_first():
    assert reachable(BEGIN) == set(Phase)


def test_the_picture_has_every_way_of_the_table_and_no_other():
    arrows = {
        tuple(line.split(":")[0].split(" --> "))
        for line in draw().splitlines()
        if " --> " in line and "[*]" not in line
    }
    table = {
        (f"    {phase.value}", end.value)
        for phase, exits in TABLE.items()
        for end in exits.values()
        if end is not phase
    }
    assert arrows == table
    assert draw().startswith("stateDiagram-v2\n    [*] --> Submitted\n")
    assert draw().endswith("    Completed --> [*]\n    Failed --> [*]\n")


def reachable(begin: Phase) -> set[Phase]:
    seen = {begin}
    todo = [begin]
    while todo:
        for end in TABLE[todo.pop()].values():
            if end not in seen:
                seen.add(end)
                todo.append(end)
    return seen
