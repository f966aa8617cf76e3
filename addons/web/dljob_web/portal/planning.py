"""
The process that plans for jobs which are not submitted (:mod:`dljob_web.portal.posing`).

The API server has accepted these jobs in a dry run with the user's own token. The plan itself gets all documents
with the question, and neither rights nor credentials.
"""

import sys

from dljob.cli.verbs.studies.supposing import answer_here
from dljob.client.backend import Created
from dljob.client.cluster.reading.planned import Planner, show
from dljob.kube.documents import JsonObject
from dljob_web.sources import show_plan


def plan_here(sent: JsonObject) -> JsonObject:
    created = Created(sent["created"], sent["notices"])
    jobs, now, learned = sent["jobs"], sent["at"], sent["learned"]

    def plan() -> list[JsonObject]:
        planner = Planner(
            sent["settings"], told=sent["gpus"], learned=learned, granted=sent["granted"], now=now
        )
        return planner.plan(created.items, jobs, nodes=sent["nodes"])

    return show_plan(show(created, jobs, plan=plan, learned=learned, now=now))


if __name__ == "__main__":
    answer_here(plan_here, *sys.argv[1:])
