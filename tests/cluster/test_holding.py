"""An administrator holds the jobs of a namespace, and all jobs, of an installed operator."""

from pathlib import Path

import pytest

from dljob.kube import names
from tests.cluster.jobs import as_text, replay
from tests.cluster.looking import View

pytestmark = pytest.mark.nodes


def test_a_job_on_hold_starts_after_the_release(view: View, saved: Path):
    view.cluster.give_gpus(node1=1)
    places = ((view.namespace, names.HOLD), (names.HOME, names.HOLD_ALL))
    for number, (namespace, annotation) in enumerate(places):
        job = f"held-{number}"
        view.cluster.kubectl("annotate", "namespace", namespace, f"{annotation}=an upgrade")
        try:
            view.kubectl("apply", "-f", "-", stdin=as_text(replay(job, [1], saved)))
            assert "(an upgrade)" in view.wait_event(job, "SetAside")
            assert not view.pods(job)
        finally:
            view.cluster.kubectl("annotate", "namespace", namespace, f"{annotation}-")
        view.wait_progress(job)
        view.kubectl("delete", "dljob", job)
