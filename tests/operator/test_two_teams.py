"""The example of two teams in Kueue."""

import yaml

from dljob.core.documents import jobfile
from dljob.operator.kueue.workloads import QUEUE_LABEL
from tests.operator.manifests import ROOT
from tests.servers.api import Json

FILE = ROOT / "manifests" / "kueue" / "two-teams.yaml"


def test_example_of_two_teams_is_consistent():
    documents = list(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))
    by_kind: dict[str, list[Json]] = {}
    for each in documents:
        by_kind.setdefault(each["kind"], []).append(each)
    queues = {
        (each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"]["clusterQueue"]
        for each in by_kind["LocalQueue"]
    }
    assert set(queues.values()) == {each["metadata"]["name"] for each in by_kind["ClusterQueue"]}
    [cohort] = by_kind["Cohort"]
    quota = 0
    for each in by_kind["ClusterQueue"]:
        assert each["spec"]["cohortName"] == cohort["metadata"]["name"]
        [group] = each["spec"]["resourceGroups"]
        [flavor] = group["flavors"]
        assert flavor["name"] in {each["metadata"]["name"] for each in by_kind["ResourceFlavor"]}
        quota += flavor["resources"][0]["nominalQuota"]
    jobs = [jobfile.parse(each, require_template=True) for each in by_kind["DLJob"]]
    for job, document in zip(jobs, by_kind["DLJob"], strict=True):
        namespace = document["metadata"]["namespace"]
        assert (namespace, job.labels[QUEUE_LABEL]) in queues
    # The first may borrow all, and both fit without borrowing.
    assert jobs[0].gpus.options[-1] == quota
    assert jobs[1].gpus.options[-1] == quota // len(queues)
