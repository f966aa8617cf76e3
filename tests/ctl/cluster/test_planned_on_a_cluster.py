"""``dljob submit --dry-run`` on a real control plane, compared with the operator's decision after the submission."""

import pytest

from tests.ctl.cluster.playing import home_of

pytestmark = [pytest.mark.cluster, pytest.mark.processes, pytest.mark.story]

LONG = 10**6
SUBMISSIONS = {
    "first": ([2, 4], LONG, -10),
    "second": ([2], LONG, -10),
    # Its priority leaves one choice, also after a further measurement of speeds.
    "urgent": ([2], 20_000, 0),
    "last": ([4], LONG, -10),
}


def count_gpus(placement):
    return {each["name"]: len(each["gpuIds"]) for each in placement.get("nodes", ())}


def is_as_planned(stage, effect):
    status = stage.status(effect["job"])
    if effect["step"] == "wait":
        ahead = status.get("queue", {}).get("ahead")
        return (status.get("phase"), ahead) == ("Queued", effect["queue"]["ahead"])
    # A job that stops gets no new GPUs.
    return count_gpus(status.get("allocation", {})) == count_gpus(effect.get("new", {}))


def wait_until_known(stage, name, options):
    """Wait until the operator has nothing to learn that could make it decide again."""

    def is_measured(job):
        status = job["status"]
        if status["phase"] == "Queued":
            return True
        return status["phase"] == "Running" and status["progress"].get("iterationsPerSecond")

    stage.wait(lambda: all(map(is_measured, stage.api.get(stage.path())["items"])))
    if len(options) > 1:
        stage.wait(lambda: stage.status(name).get("checkpoint", {}).get("trust") == "Confirmed")


def test_jobs_get_the_gpus_of_their_plans(scene, ada):
    stage, steps = scene.stage, []
    # An operator that has just begun has not shown its settings yet, which a plan needs.
    stage.wait(lambda: ada("config", "show", env=home_of(stage)).status == 0)
    for name, (options, iterations, priority) in SUBMISSIONS.items():
        document = stage.make_job(name, iterations=iterations)
        document["spec"] |= {"gpus": {"options": options}, "priority": priority}
        file = ada.file(document)
        effects = ada("submit", file, "--dry-run", "-o", "json", env=home_of(stage)).data
        assert stage.is_gone(name)
        assert ada("submit", file).status == 0
        assert effects[0]["job"] == name
        for effect in effects:
            stage.wait(lambda effect=effect: is_as_planned(stage, effect))
        steps.append(effects[0]["step"])
        if steps[-1] == "start":
            wait_until_known(stage, name, options)
    assert steps == ["start", "start", "start", "wait"]


def test_partial_view_names_the_missing_right(scene, as_user):
    eve = as_user(scene.user("eve", "dljob-edit"))
    told = eve("submit", eve.file(scene.stage.make_job("hers", iterations=1)), "--dry-run")
    assert (told.status, told.stdout) == (0, "hers is accepted by the API server\n")
    assert (
        "may not list dljobs in all namespaces; ask for a ClusterRoleBinding to the ClusterRole"
        " dljob-view; so it is not known when the jobs start, on which GPUs, and which other"
    ) in told.stderr
