"""``dljob what-if``: when each job would end if something were different."""


def test_two_futures_stand_side_by_side(played):
    played.submit("a", gpus={"options": [2, 4]})
    played.do("give", "a", {"n1": (0, 1, 2, 3)}, iteration=100, speed=2.0)
    result = played("what-if", "--job", "a", "--most", 2, "-o", "json")
    now, then = ({each["job"]: each for each in f["jobs"]} for f in result.data["futures"])
    assert (now["a"]["gpus"], then["a"]["gpus"]) == (4, 2)
    assert 0.0 < now["a"]["endsInSeconds"] < then["a"]["endsInSeconds"]
    header, first, *_ = played("what-if", "--job", "a", "--most", 2).stdout.splitlines()
    assert header.split() == ["JOB", "GPUS", "ENDS", "GPUS", "IF", "SO", "ENDS", "IF", "SO", "GAIN"]
    assert first.startswith("a ")
    assert first.endswith("later")
    assert played("get", "a", "-o", "json").data["spec"]["gpus"] == {"options": [2, 4]}


def test_a_job_ends_when_the_lists_say_it_does(played):
    played.submit("a", gpus={"options": [4]})
    played.do("give", "a", {"n1": (0, 1, 2, 3)}, iteration=100, speed=2.0)
    now, _ = played("what-if", "-o", "json").data["futures"]
    shown = played("get", "a", "-o", "json").data["status"]["progress"]["etaSeconds"]
    assert abs(now["jobs"][0]["endsInSeconds"] - shown) < 5.0


def test_suppositions_are_named(played):
    target = {"target": {"metric": "top5", "value": 0.9}}
    log = {"log": r"step (?P<iteration>\d+) top5=(?P<top5>\S+)"}
    played.submit("a", gpus={"options": [4]}, training=target, progress=log)
    result = played("what-if", "--another", "a")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["JOB", "a", "a-2"]
    assert "the length or the speed of a and a-2 is not known" in result.stderr
    played("suspend", "a")
    nothing = played("what-if")
    assert (nothing.status, nothing.stdout, "no jobs" in nothing.stderr) == (0, "", True)


def test_a_wrong_question_is_refused(played):
    played.submit("a")
    for options, problem in (
        (("--most", 2), "job: it is missing"),
        (("--job", "b", "--most", 2), "job: there is no job b"),
        (("--policy", "mine.py:Mine"), "policy: "),
    ):
        result = played("what-if", *options)
        assert (result.status, problem in result.stderr) == (1, True), result.stderr
