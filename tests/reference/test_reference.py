"""The independent reference equals what others published, to the printed digit."""

import csv
import sys
from fractions import Fraction
from pathlib import Path

from tests.reference import reference
from tests.reference.reference import Task

TRACES = Path(__file__).parents[1] / "data" / "traces"

with (TRACES / "peer_figures.csv").open(encoding="utf-8") as file:
    PUBLISHED = list(csv.DictReader(file))


def test_it_equals_the_published_figures_to_the_printed_digit():
    for row in PUBLISHED:
        tasks = reference.read_trace(TRACES / f"{row['trace']}.csv.gz")
        figures = reference.replay(tasks, 64, row["policy"])
        average, *others = str(figures).split()
        low, _, high = row["avg"].partition("..")
        assert float(low) <= float(average) <= float(high or low), row
        assert others == [row["p50"], row["p95"], row["p99"], row["makespan"]], row


def ends(policy: str, *tasks: Task, gpus: int = 4) -> list[Fraction | int]:
    return reference.play(tasks, reference.POLICIES[policy](tasks, gpus))


def test_in_fifo_the_head_blocks_and_in_fjf_those_that_fit_pass():
    tasks = [Task(0, 10, 3), Task(1, 10, 4), Task(2, 5, 1)]
    assert ends("fifo", *tasks) == [10, 20, 25]
    assert ends("fjf", *tasks) == [10, 20, 7]


def test_ties_keep_the_order_of_the_file():
    tasks = [Task(0, 10, 4), Task(0, 10, 4), Task(0, 10, 4)]
    for policy in ("fifo", "fjf", "srtf", "srsf"):
        assert ends(policy, *tasks) == [10, 20, 30]


def test_srtf_preempts_by_remaining_time_and_srsf_by_remaining_service():
    tasks = [Task(0, 10, 4), Task(5, 4, 4)]
    assert ends("srtf", *tasks) == [14, 9]
    assert ends("srsf", Task(0, 10, 1), Task(5, 4, 4)) == [10, 14]


def test_simultaneous_ends_and_arrivals_are_one_decision():
    # At 10 the first ends and the third comes: the second, though it waits, is the longer one.
    tasks = [Task(0, 10, 4), Task(1, 20, 4), Task(10, 5, 4)]
    assert ends("srtf", *tasks) == [10, 35, 15]


def test_a_task_of_no_length_ends_when_it_starts():
    assert ends("fifo", Task(0, 10, 4), Task(1, 0, 1), Task(2, 3, 4)) == [10, 10, 13]


def test_tiresias_demotes_by_service_and_does_not_preempt_within_a_queue():
    # The first reaches 3250 GPU-seconds at 3250 and gives way to the second, which waited.
    first, second = ends("tiresias", Task(0, 4000, 1), Task(10, 100, 1), gpus=1)
    assert (first, second) == (4100, 3350)


def test_the_look_at_a_job_with_more_gpus_comes_late():
    # It crosses the bound after 1625 s, but the look asked for at the second's arrival is later.
    tasks = [Task(0, 4000, 2), Task(10, 100, 2)]
    assert ends("tiresias", *tasks, gpus=2) == [4100, 10 + (3250 - 10) // 2 + 100]
    # Every decision puts it off again.
    tasks.append(Task(1000, 1, 2))
    assert ends("tiresias", *tasks, gpus=2)[1] == 1000 + (3250 - 1000) // 2 + 100


def test_fractions_of_a_second_are_exact():
    tasks = [Task(Fraction(1, 10), Fraction(2, 10), 1)]
    assert ends("srtf", *tasks) == [Fraction(3, 10)]


def test_the_command_prints_the_figures(monkeypatch, capsys):
    words = ["reference", str(TRACES / "philly_2869ce.csv.gz"), "--policy", "srtf"]
    monkeypatch.setattr(sys, "argv", words)
    reference.main()
    assert capsys.readouterr().out == "philly_2869ce srtf 123130.2 11126 531381 947007 7658747\n"
