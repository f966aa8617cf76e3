"""The queue, from the documents of jobs."""

from dljob_web.queue_data import make_queue


def job(name, *, ahead=None, namespace=None, priority=0, phase="Queued", gives_to="", **queue):
    status = {"phase": phase, "message": f"{name} waits"}
    if ahead is not None:
        status["queue"] = {"ahead": ahead, **queue}
    if gives_to:
        status["cause"] = {"code": "MakesRoom", "job": gives_to, "gpus": 1}
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"metadata": metadata, "spec": {"priority": priority}, "status": status}


def test_jobs_that_wait_are_in_the_order_of_their_turns():
    jobs = [
        job("last", ahead=2, unknownBecause="no reason is known"),
        job("runs", phase="Running"),
        job("next", ahead=0, priority=5, expectedStart="2026-01-31T08:00:00Z"),
        {"metadata": {"name": "new"}},
    ]
    first, second = make_queue(jobs)
    assert first == {
        "job": "next",
        "priority": 5,
        "submittedAt": None,
        "message": "next waits",
        "ahead": 0,
        "expectedStart": "2026-01-31T08:00:00Z",
        "makesRoom": [],
    }
    assert (second["job"], second["unknownBecause"]) == ("last", "no reason is known")


def test_a_job_of_another_user_waits_without_its_turn():
    theirs = job("theirs")
    theirs["status"] = {"phase": "Queued", "owner": "bob"}
    mine, other = make_queue([theirs, job("mine", ahead=1)])
    assert (mine["job"], other["job"]) == ("mine", "theirs")
    assert other["unknownBecause"] == "only the owner of the job and root see its turn"


def test_a_job_that_waits_is_in_the_queue_before_its_turn_is_known():
    jobs = [
        job("late"),
        job("urgent", priority=9),
        job("later"),
        job("first", ahead=0),
        job("starts", phase="Initialized"),
    ]
    queue = make_queue(jobs)
    assert [item["job"] for item in queue] == ["first", "urgent", "late", "later"]
    assert "ahead" not in queue[1]
    assert "turn is not written yet" in queue[1]["unknownBecause"]


def test_jobs_that_give_up_gpus_now_make_room_for_the_job_that_they_name():
    jobs = [
        job("large", namespace="team", ahead=0),
        job("one", namespace="team", phase="Adjusting", gives_to="team/large"),
        job("other", namespace="team", phase="Adjusting", gives_to="team/large"),
        # It did so earlier, and trains by now.
        job("earlier", namespace="team", phase="Running", gives_to="team/large"),
    ]
    [item] = make_queue(jobs)
    assert item["makesRoom"] == ["team/one", "team/other"]
