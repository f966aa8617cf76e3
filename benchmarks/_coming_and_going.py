"""Jobs that come and go on a cluster, whose page a benchmark looks at."""

import sys

from _progress import say

from tests.operator.stages import Stage

FINAL = ("Completed", "Failed")
ITERATIONS = (800, 1200, 1600, 2000, 2400)
"""A third of a minute to a minute of one GPU."""
FAILING = 40
"""Each such job fails, and says something hostile first."""
HOSTILE = (
    "</script><script>document.title='stolen'</script><img src=x onerror=alert(1)>\x1b[2J\u202e"
)


def count_ended(stage: Stage, *, left: bool = False) -> int:
    """Count the jobs that have ended, or those that are left."""
    items = stage.api.get(stage.path())["items"]
    return sum((each.get("status", {}).get("phase") in FINAL) != left for each in items)


def remove_some(stage: Stage, number: int) -> None:
    """Remove jobs that have not ended: half of them first, half of them last submitted."""
    say(f"removes {number} jobs")
    items = stage.api.get(stage.path())["items"]
    names = [
        job["metadata"]["name"] for job in items if job.get("status", {}).get("phase") not in FINAL
    ]
    removed = {*names[: number // 2], *names[len(names) - number // 2 :]}
    for name in removed:
        stage.api.delete(stage.path(name))
    stage.wait(lambda: all(stage.is_gone(name) for name in removed))


def submit(stage: Stage, number: int) -> None:
    name = f"job-{number:03}"
    document = stage.make_job(name, iterations=ITERATIONS[number % len(ITERATIONS)])
    if number % FAILING == FAILING // 2:
        [container] = document["spec"]["template"]["spec"]["containers"]
        container["command"] = [sys.executable, "-c", f"print({HOSTILE!r}); raise SystemExit(3)"]
        document["spec"]["backoffLimit"] = 1
    stage.api.post(stage.path(), document)
