"""The checker finds each broken law in forged logs."""

import json

from tests.chaos.testimony import Disturbance, Expected, count_changes, find_broken_laws, read


def forge(
    job="a",
    *,
    at=0.0,
    start="1",
    rank=0,
    world=1,
    gpus=("n:0",),
    resumed=0,
    steps=0,
    ending="done",
    **more,
):
    """The log of a process with a step a second, a checkpoint at its end, and the end."""
    life = Forged(at)
    life.say(
        "begin", job=job, start=start, rank=rank, world=world, gpus=gpus, iteration=resumed, **more
    )
    for step in range(resumed + 1, resumed + steps + 1):
        life.say("step", iteration=step)
    if ending:
        life.say("saved", iteration=resumed + steps)
        life.say(ending, iteration=resumed + steps)
    return life


class Forged:
    def __init__(self, at):
        self.at = at
        self.text = ""

    def say(self, what, **more):
        self.text += json.dumps({"what": what, "at": self.at, **more}) + "\n"
        self.at += 1.0


def judge(*forged, iterations=None, given_up=(), disturbances=(), **more):
    lives = [life for each in forged if (life := read(each.text)) is not None]
    expected = Expected(
        iterations if iterations is not None else {"a": 5},
        frozenset(given_up),
        tuple(Disturbance(*each) for each in disturbances),
        **more,
    )
    return find_broken_laws(lives, expected)


def test_moved_and_finished_job_breaks_no_law():
    assert (
        judge(
            forge(steps=3, ending="ended"),
            forge(at=10.0, start="2", gpus=("n:1", "n:2"), resumed=3, steps=2),
        )
        == []
    )


def test_containers_of_one_start_live_together():
    other = forge(rank=1, world=2, gpus=("m:0",), ending="")
    for _ in range(6):
        other.say("alive")
    assert judge(forge(world=2, steps=5), other) == []


def test_overlapping_lives_on_a_gpu_are_two_masters():
    first = forge(steps=5)
    (law,) = judge(first, forge("b", at=4.0, steps=5), iterations={"a": 5, "b": 5})
    assert law.startswith("two masters of n:0: a (rank 0 of start 1")


def test_shorter_life_does_not_hide_a_longer_one():
    long, short = forge(steps=50), forge("b", at=2.0, steps=5)
    third = forge("c", at=30.0, steps=5)
    laws = judge(long, short, third, iterations={"a": 50, "b": 5, "c": 5})
    assert len(laws) == 2
    assert "a (" in laws[1]
    assert "c (" in laws[1]


def test_locked_gpu_means_two_masters():
    late = forge("b", at=20.0, ending="")
    late.say("clash", gpu="n:0")
    laws = judge(forge(steps=5), late, iterations={"a": 5}, given_up=["b"])
    assert [law for law in laws if law.startswith("two masters")]


def test_overlapping_starts_of_a_job_are_found():
    # In two starts, and one rank of one start twice.
    for start in ("2", "1"):
        laws = judge(forge(steps=5), forge(at=2.0, ending="", start=start, gpus=("n:1",)))
        assert [law for law in laws if law.startswith("lives twice")]


def test_next_start_begins_at_the_checkpoint():
    for resumed in (0, 2, 4):
        after = forge(at=10.0, resumed=resumed, steps=5 - resumed)
        laws = judge(forge(steps=3, ending="ended"), after)
        assert [law for law in laws if "goes on from" in law], resumed


def test_no_iteration_is_skipped():
    life = forge(steps=2, ending="")
    life.say("step", iteration=4)
    life.say("step", iteration=5)
    life.say("saved", iteration=5)
    (law,) = judge(life)
    assert law.endswith("does not count one by one")


def test_only_disturbed_jobs_may_lose_iterations():
    killed, again = forge(steps=3, ending=""), forge(at=10.0, start="2", steps=5)
    (law,) = judge(killed, again)
    assert law.endswith("came to 3, kept 0, and nothing had disturbed it")
    assert judge(killed, again, disturbances=[("a", 4.0)]) == []
    assert judge(killed, again, disturbances=[("b", 4.0)]) == [law]
    assert judge(killed, again, disturbances=[("a", 11.0)]) == [law]


def test_disturbance_before_the_first_line_excuses_a_loss():
    """Another container of the start was killed while its leader was still starting."""
    first = forge(steps=3, ending="ended")
    killed = forge(at=10.0, start="2", resumed=3, steps=1, ending="")
    again = forge(at=20.0, start="3", resumed=3, steps=2)
    (law,) = judge(first, killed, again)
    assert judge(first, killed, again, disturbances=[("a", 9.0)]) == []
    assert judge(first, killed, again, disturbances=[("a", 1.0)]) == [law]


def test_kill_between_saving_and_logging_loses_nothing():
    killed = forge(steps=3, ending="")
    assert judge(killed, forge(at=10.0, start="2", resumed=3, steps=2)) == []
    # Half a line ends a log.
    killed.text += '{"what": "st'
    assert judge(killed, forge(at=10.0, start="2", resumed=3, steps=2)) == []
    assert read('{"what": "beg') is None


def test_unfinished_job_is_found():
    (never,) = judge(iterations={"a": 5})
    assert never == "a never ran"
    assert judge(forge(steps=4))[0] == "a did not come to 5, or went beyond"
    assert judge(forge(steps=6))[0] == "a did not come to 5, or went beyond"
    assert judge(forge(steps=4, ending="ended"), given_up=["a"]) == []


def test_job_is_finished_once_if_it_was_submitted():
    twice = forge(at=20.0, start="2", steps=5)
    assert [law for law in judge(forge(steps=5), twice) if "was finished 2 times" in law]
    # All that knew of its end was killed, too; the job starts again, and has no work left.
    again = forge(at=20.0, start="2", resumed=5)
    assert judge(forge(steps=5), again, disturbances=[("a", 7.5)]) == []
    (law,) = judge(forge(steps=5), forge("b", at=20.0, steps=5))
    assert law == "b ran, and no user had asked for it"


def test_finished_job_does_not_begin_again():
    again = forge(at=20.0, start="2", resumed=5)
    (law,) = judge(forge(steps=5), again)
    assert law.endswith("began again")
    assert judge(forge(steps=5), again, disturbances=[("b", 7.0)]) == [law]
    # Its end outlives the SideCar.
    assert judge(forge(steps=5), again, disturbances=[("a", 10.0)]) == [law]
    twice = [("a", 10.0), ("a", 10.1), ("a", 15.0), ("a", 15.1)]
    assert judge(forge(steps=5), again, disturbances=twice) == [law]
    assert judge(forge(steps=5), again, disturbances=twice, outlived=1) == []
    assert judge(forge(steps=5), again, disturbances=twice[:2], outlived=1) == [law]
    assert judge(forge(steps=5), again, given_up=["a"]) == []
    # An unfinished evaluation is repeated.
    assert judge(forge(steps=5, ending="ended"), again) == []


def test_changes_are_counted_between_starts():
    told = [
        forge(steps=1, ending="ended"),
        forge(at=10.0, start="2", world=2, resumed=1, steps=1, ending="ended"),
        forge(at=10.0, start="2", rank=1, world=2, gpus=("m:0",), ending="ended"),
        forge(at=20.0, start="3", gpus=("n:0", "m:0"), resumed=2, steps=1, ending="ended"),
        forge(at=30.0, start="4", resumed=3, steps=2),
    ]
    lives = [life for each in told if (life := read(each.text)) is not None]
    assert count_changes(lives) == 2


def test_hasty_end_excuses_a_first_step_and_an_unshown_end_alone():
    first = forge(steps=3, ending="ended")

    def begin(steps):
        started = forge(at=10.0, start="2", resumed=3, ending="")
        for step in range(4, 4 + steps):
            started.say("step", iteration=step)
        started.say("ended", iteration=3 + steps)
        return judge(first, started, forge(at=20.0, start="3", resumed=3, steps=2), is_hasty=True)

    assert begin(1) == []
    (lost,) = begin(2)
    assert "came to 5, kept 3" in lost
    evaluates, again = (forge(at=at, start=str(at), resumed=5) for at in (20.0, 30.0))
    stepped = forge(steps=5)
    assert judge(forge(steps=5, ending=""), evaluates, again, is_hasty=True) == []
    (begun,) = judge(stepped, evaluates, is_hasty=True)
    assert "was done, and" in begun
