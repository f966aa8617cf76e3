"""``kubectl apply -f examples/*/job.yaml``, without a change: each job completes."""

from pathlib import Path

import pytest
import yaml

from tests.cluster.looking import View
from tests.servers.images import EXAMPLES as IMAGE
from tests.servers.images import ROOT

JOB_FILES = sorted((ROOT / "examples").glob("*/job.yaml"))
LIMIT_SECONDS = 1500.0
"""Frameworks are large, and machines are busy."""

each_example = pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.parent.name)


@each_example
def test_an_example_names_the_image_of_the_release(path: Path):
    job = yaml.safe_load(path.read_text())
    (trainer,) = job["spec"]["template"]["spec"]["containers"]
    assert trainer["image"] == IMAGE.rpartition("/")[2]
    assert job["metadata"]["name"] == path.parent.name


@pytest.mark.nodes
@pytest.mark.timeout(LIMIT_SECONDS + 300)
@each_example
def test_an_example_completes_on_a_cluster_as_it_is(view: View, path: Path):
    view.cluster.give_gpus(node1=2, node2=2)
    view.kubectl("apply", "-f", path)
    name = path.parent.name

    def find_end() -> dict[str, str]:
        found = view.job(name).get("status", {}).get("conditions", [])
        ends = {each["type"]: each["status"] for each in found}
        return {each: ends[each] for each in ("Complete", "Failed") if ends.get(each) == "True"}

    ends = view.wait(find_end, what=f"the end of {name}", seconds=LIMIT_SECONDS)
    assert ends == {"Complete": "True"}, view.tell()
    assert view.columns(name)["PHASE"] == "Completed"
