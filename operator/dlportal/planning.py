"""
The process that plans for jobs which are not submitted (:mod:`dlportal.posing`).

The API server has accepted these jobs in a dry run with the user's own token. The plan itself gets all documents
with the question, and neither rights nor credentials.
"""

import sys

from dlclient.backend import Created
from dlclient.cluster.reading.planned import LIMITS, WITH_PROFILES, Planner, show
from dlcore.documents import profilefile
from dlctl.output.page_source import show_plan
from dlctl.verbs.studies.supposing import answer_here
from dlkube.documents import JsonObject


def plan_here(sent: JsonObject) -> JsonObject:
    created = Created(sent["created"], sent["notices"])
    jobs, now = sent["jobs"], sent["at"]
    profiles = profilefile.parse_all(sent["profiles"])

    def plan() -> list[JsonObject]:
        planner = Planner(sent["settings"], told=sent["gpus"], now=now, profiles=profiles)
        return planner.plan(created.items, jobs, nodes=sent["nodes"])

    limits = WITH_PROFILES if sent["hasProfiles"] else LIMITS
    return show_plan(show(created, jobs, plan=plan, now=now, limits=limits))


if __name__ == "__main__":
    answer_here(plan_here, *sys.argv[1:])
