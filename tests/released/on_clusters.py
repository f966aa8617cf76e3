"""The parts that a cluster installs: the plugin, the chart and install.yaml on a control plane, the images on two kubelets."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helms import HOME
from tests.cluster.clusters import Cluster, is_taken, opened
from tests.cluster.jobs import as_text, replay
from tests.released.on_machines import unpack
from tests.released.rows import Archive, Check, Files, say
from tests.servers.binaries import HELM, find_all
from tests.servers.controlplane import PROGRAMS, ControlPlane
from tests.servers.images import Images
from tests.servers.kubectl import Kubectl

LIMIT_SECONDS = 600.0
PLACE = "control plane of Kubernetes"
VALUES = {
    "settings": {"pods": {"runtimeClass": "", "virtualGpus": True}},
    # There are no other nodes than those of the pool.
    "tolerations": [{"operator": "Exists"}],
}


def checks(files: Files, folder: Path) -> Iterator[Check]:
    yield Check("chart, OCI layout", PLACE, partial(check_chart, files, folder))
    yield Check("install.yaml", PLACE, partial(check_install, files, folder))
    yield Check("plugin of kubectl", PLACE, partial(check_plugin, files, folder))
    yield Check("chart and images, amd64", "two kubelets", partial(check_nodes, files, folder))


def pull_chart(files: Files, folder: Path) -> Path:
    """Take the chart out of its layout, as `helm pull` does; return its archive."""
    archive = Archive(files.find("dljob-chart-*.oci.tar"))
    manifest = archive.document(archive.top())
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    assert archive.document(manifest["config"])["version"] == files.version
    [layer] = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    content = archive.read(layer)
    assert layer["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    target = folder / "pulled.tgz"
    target.write_bytes(content)
    return target


def name_images(files: Files) -> dict[str, str]:
    """Return the names under which the chart asks for the images."""
    return {
        name: f"dljob-{name}@{Archive(file).top()['digest']}" for name, file in files.images.items()
    }


@contextmanager
def open_plane(folder: Path) -> Iterator[tuple[ControlPlane, Kubectl]]:
    programs = find_all(*PROGRAMS, HELM)
    place = folder / f"plane-{time.monotonic_ns()}"
    with ControlPlane(place, programs=programs) as plane:
        yield plane, Kubectl(programs["helm"], plane.admin, seconds=LIMIT_SECONDS)


def check_chart(files: Files, folder: Path) -> str:
    chart = pull_chart(files, folder)
    with open_plane(folder) as (plane, helm):
        helm("install", "dljob", chart, f"--namespace={HOME}", "--create-namespace")
        version = say_version(plane.kubectl)
        check_images(plane.kubectl, files)
        helm("uninstall", "dljob", f"--namespace={HOME}")
    return f"{version}: installed and uninstalled, images by digest"


def check_install(files: Files, folder: Path) -> str:
    with open_plane(folder) as (plane, _):
        plane.kubectl("apply", "--server-side", "--filename", files.folder / "install.yaml")
        version = say_version(plane.kubectl)
        check_images(plane.kubectl, files)
    return f"{version}: applied, images by digest"


def say_version(kubectl: Kubectl) -> str:
    told: dict[str, Any] = yaml.safe_load(kubectl("version", "--output=yaml"))
    return str(told["serverVersion"]["gitVersion"])


def check_images(kubectl: Kubectl, files: Files) -> None:
    """The operator's Deployment and the settings name the images of this release."""
    images = name_images(files)
    where = (f"--namespace={HOME}", "--output=yaml")
    deployment = yaml.safe_load(kubectl("get", "deployment", "dljob-operator", *where))
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == images["operator"]
    settings = yaml.safe_load(kubectl("get", "configmap", "dljob-settings", *where))
    assert images["sidecar"] in settings["data"]["settings.yaml"]


def check_plugin(files: Files, folder: Path) -> str:
    place = unpack(files.find("kubectl-dljob-*.tar.gz"), folder / "plugin")
    with open_plane(folder) as (plane, _):
        plane.kubectl("apply", "--server-side", "--filename", files.folder / "install.yaml")
        kubectl = find_all(*PROGRAMS)["kubectl"]
        path = os.pathsep.join((str(place), os.environ["PATH"]))
        variables = {"PATH": path, "KUBECONFIG": str(plane.admin)}
        listed = say(kubectl, "plugin", "list", home=folder, **variables)
        assert str(place / "kubectl-dljob") in listed, listed
        told = say(kubectl, "dljob", "--version", home=folder, **variables)
        assert files.version in told, told
        say(kubectl, "dljob", "get", "--all-namespaces", home=folder, **variables)
    return f"{told.splitlines()[-1]}; lists jobs"


def check_nodes(files: Files, folder: Path) -> str:
    chart = pull_chart(files, folder)
    images = name_images(files)
    archives = {f"docker.io/library/{images[name]}": file for name, file in files.images.items()}
    with opened(folder / "nodes", lambda room: Images.in_cache().released(room, archives)) as seen:
        values = folder / "values.yaml"
        values.write_text(yaml.safe_dump(VALUES), encoding="utf-8")
        seen.helm(
            *("install", "dljob", chart, f"--namespace={HOME}", "--create-namespace"),
            *("--values", values, "--wait", "--timeout=8m"),
        )
        wait(lambda: is_taken(seen), seen.describe_home)
        seen.give_gpus(node1=2, node2=2)
        jobs = [replay(name, [1], seen.folder, iterations=200) for name in ("one", "two")]
        seen.kubectl("apply", "--filename=-", stdin=as_text(*jobs))
        wait(lambda: count_done(seen) == len(jobs), lambda: describe(seen))
        pods = seen.ask("pods", f"--namespace={HOME}", "--selector=app.kubernetes.io/name=dljob")
        nodes = sorted({each["spec"]["nodeName"] for each in pods["items"]})
        seen.helm("uninstall", "dljob", f"--namespace={HOME}", "--wait")
    return f"operators on {' and '.join(nodes)}, {len(jobs)} jobs Completed, uninstalled"


def count_done(cluster: Cluster) -> int:
    jobs = cluster.ask("dljobs", "--namespace=default")["items"]
    return sum(each.get("status", {}).get("phase") == "Completed" for each in jobs)


def describe(cluster: Cluster) -> str:
    words = ("get", "dljobs,pods,events", "--namespace=default")
    return f"{cluster.kubectl.try_to(*words).out}\n{cluster.describe_home()}"


def wait(is_so: Callable[[], bool], described: Callable[[], str]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert time.monotonic() < end, f"waited in vain; {described()[-3000:]}"
        time.sleep(1)
