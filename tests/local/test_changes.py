"""A watcher hears of every change once, in every order of changes and questions."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from dljob.core.model import JobId
from dljob.local.jobs import registry
from dljob.local.jobs.registry import Changes

JOBS = [JobId(name) for name in "abc"]


@given(st.lists(st.tuples(st.sampled_from(JOBS), st.sampled_from(["change", "remove", "ask"]))))
def test_slow_watcher_stays_current(story):
    kept = Changes()
    there: dict[JobId, int] = {}
    seen: dict[JobId, int] = {}
    version = kept.version
    for time, (job, what) in enumerate([*story, (JOBS[0], "ask")]):
        if what == "change":
            there[job] = time
            kept.note([job])
        elif what == "remove":
            there.pop(job, None)
            kept.note_removed(job)
        else:
            assert kept.knows(version)
            changed, removed = kept.since(version)
            for name in removed:
                seen.pop(name, None)
            seen |= {name: there[name] for name in changed}
            version = kept.version
            assert kept.since(version) == ([], [])
    assert seen == there


def test_a_watcher_that_missed_too_many_removals_gets_all_jobs(monkeypatch):
    monkeypatch.setattr(registry, "MOST_REMOVED", 2)
    kept = Changes(JOBS)
    version = kept.version
    for job in JOBS[:2]:
        kept.note_removed(job)
    assert kept.knows(version)
    kept.note_removed(JOBS[2])
    assert not kept.knows(version)
    assert kept.knows(kept.version)


def test_waiting_ends_with_the_first_change_or_with_the_time():
    async def story():
        kept = Changes()
        await kept.wait(kept.version, 0.0)
        await kept.wait(kept.version - 1, 900.0)
        waiting = asyncio.create_task(kept.wait(kept.version, 900.0))
        await asyncio.sleep(0)
        kept.note(JOBS)
        await waiting

    asyncio.run(asyncio.wait_for(story(), 240.0))
