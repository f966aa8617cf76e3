"""
Hostile jobs in real containers: an image whose Python lies in the SideCar's place, or a training that does harm.

A user's image decides which program is named python3. Here a folder that comes first on the path has a
shell script of that name, which starts the liar before an honest SideCar and is the usual Python otherwise.
"""

import shutil
from pathlib import Path
from typing import Any

import tests.hostile
from tests.chaos.hostiles import MISCHIEF, document_of, folder_of, honest
from tests.cluster.looking import API, View
from tests.hostile import lies, trainings
from tests.operator.hostiles import Applied
from tests.servers.images import TRAINER as IMAGE

Json = dict[str, Any]

AT_A_SOCKET = ("removes-its-socket", "removes-its-lock", "connects-without-end")
"""The kinds that need the Unix socket of a SideCar, which a container does not have."""
HARM = tuple(kind for kind in MISCHIEF if kind not in AT_A_SOCKET)
PYTHON = "/usr/bin/python3"
"""Of the image."""
USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
LYING_PYTHON = """\
#!/bin/sh
case "$*" in
*dljob-sidecar.pyz\\ run\\ *) PYTHONPATH={place} exec {python} -m tests.hostile.liar "$HOSTILE" -- "$@" ;;
esac
exec {python} "$@"
"""


def in_containers(view: View, folder: Path, place: Path, gpus: dict[str, int]) -> Applied:
    """Have hostile jobs in a namespace; containers see the folder, which has the script that trains, at that place."""
    programs = folder / "hostile-programs"
    ours = Path(tests.hostile.__path__[0])
    shutil.copytree(
        ours, programs / "tests" / "hostile", ignore=shutil.ignore_patterns("__pycache__")
    )
    python = programs / "bin" / "python3"
    python.parent.mkdir()
    there = place / programs.name
    python.write_text(LYING_PYTHON.format(place=there, python=PYTHON))
    python.chmod(0o755)

    def make(name: str, kind: str) -> Json:
        path = place / folder_of(name, folder).relative_to(folder)
        harmful = there / "tests" / "hostile" / Path(trainings.__file__).name
        command = [PYTHON, str(harmful), kind, str(path)]
        variables = {"HOSTILE": kind, "CHAOS_NODE": "hostile"}
        if kind in lies.KINDS:
            program = (PYTHON, "-S", "-E", str(place / "trainer.py"))
            command = honest(name, path, program)
            variables["PATH"] = f"{there / 'bin'}:{USUAL_PATH}"
        document = document_of(name, command, path, **variables)
        seen_at(document, folder, place)
        return document

    jobs = f"{API['dljobs']}/namespaces/{view.namespace}/dljobs"
    return Applied(view.api, jobs, gpus, make=make, kinds=(*lies.KINDS, *HARM))


def seen_at(document: Json, folder: Path, place: Path) -> None:
    """Run a job in the image of the tests, with a folder of this machine at a place of its own."""
    pod = document["spec"]["template"]["spec"]
    [container] = pod["containers"]
    container |= {
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "volumeMounts": [{"name": "chaos", "mountPath": str(place)}],
    }
    pod["volumes"] = [{"name": "chaos", "hostPath": {"path": str(folder)}}]
