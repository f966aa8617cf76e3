"""
Turns a job's pod template into a command on this machine.

A job file is the same on every platform. Fields that need a cluster are refused at the submission, and fields without
effect here produce a notice.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from dljob.control.acting.sidecar_options import CHECKPOINT_FOLDER, CHECKPOINT_REFERENCE
from dljob.control.acting.starts import gpu_names
from dljob.core.documents.jobschema import WORKING_DIRECTORY
from dljob.core.documents.launchers import notice_of
from dljob.core.documents.rules.podrules import TRAINER
from dljob.core.model import Job, Node
from dljob_wire.problems import Problem, join

LONGEST_WORD = (128 << 10) - 512
"""In bytes: Linux's limit of a word of a command and of a variable, less the variable's name."""
MOST_BYTES = 1 << 20
"""The limit of all words and variables of a job file: half of Linux's usual limit."""

HONOURED = frozenset({"name", "command", "args", "env", "workingDir"})
WITHOUT_EFFECT = frozenset({"image", "imagePullPolicy", "resources", "terminationMessagePath"})
POD_WITHOUT_EFFECT = frozenset(
    {"containers", "restartPolicy", "nodeSelector", "tolerations", "affinity", "priorityClassName"}
)

_TEMPLATE = "spec.template.spec"
_REFERENCE = re.compile(r"\$(?:\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")


class Trainer(NamedTuple):
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str


NOTHING = Trainer(("false",), {}, "/")
"""The command of a SideCar that never runs one."""


def has_own_folder(job: Job) -> bool:
    """Return True if this machine chooses the folder of the job's checkpoints."""
    return not job.checkpoint.path or job.checkpoint.path.startswith(CHECKPOINT_REFERENCE)


def trainer_of(
    job: Job, document: Mapping[str, Any], *, checkpoints: Path, variables: Mapping[str, str]
) -> Trainer:
    """
    Read the trainer's container, and fill in references to variables as Kubernetes does.

    ``variables`` is the environment of the job without the variables of its file, and ``checkpoints`` the job's own folder,
    which it gets unless its file names another.
    """
    container = _container(job)
    own = {CHECKPOINT_FOLDER: str(checkpoints) if has_own_folder(job) else job.checkpoint.path}
    is_for_clusters = bool(_checkpoint_volume(job))
    for variable in container.get("env", ()):
        if is_for_clusters and variable["name"] == CHECKPOINT_FOLDER:
            continue
        own[variable["name"]] = _filled(str(variable.get("value", "")), {**variables, **own})
    words = (*container["command"], *container.get("args", ()))
    everything = {**variables, **own}
    filled = tuple(_filled(word, everything) for word in words)
    return Trainer(filled, everything, folder_of(job, document))


def starting_problems(job: Job, variables: Mapping[str, str]) -> Iterator[Problem]:
    """
    Yield the problems that keep a job's program from starting.

    ``variables`` is the environment of the job without the variables of its file.
    """
    container, path = _container(job), f"{_TEMPLATE}.containers[{_index(job)}]"
    known, size = dict(variables), 0
    for place, variable in enumerate(container.get("env", ())):
        where, text = f"{path}.env[{place}].value", str(variable.get("value", ""))
        known[variable["name"]] = text
        try:
            known[variable["name"]] = _given(text, known)
        except ValueError as error:
            yield Problem(where, text, str(error), "write a shorter text, without NUL characters")
        size += len(known[variable["name"]])
    for name in ("command", "args"):
        for place, word in enumerate(container.get(name, ())):
            try:
                size += len(_given(word, known))
            except ValueError as error:
                remedy = "write a shorter text, without NUL characters"
                yield Problem(f"{path}.{name}[{place}]", word, str(error), remedy)
    if size > MOST_BYTES:
        what = (
            f"its words and variables have {size:,} characters, more than Linux gives to a program"
        )
        yield Problem(path, None, what, f"write at most {MOST_BYTES:,}, or put them into a file")


def _given(text: str, variables: Mapping[str, str]) -> str:
    """Fill in the references of a text; raises ValueError if a program cannot get the result."""
    filled = _filled(text, variables)
    if "\0" in filled:
        raise ValueError("it holds a NUL character, which Linux does not pass to a program")
    return filled


def folder_problems(
    job: Job,
    document: Mapping[str, Any],
    *,
    is_folder: Callable[[str], bool] = os.path.isdir,  # Path.is_dir raises where a name is too long
) -> Iterator[Problem]:
    """Yield a problem if the folder of the program does not exist."""
    folder = folder_of(job, document)
    if not is_folder(folder):
        path = f"{_TEMPLATE}.containers[{_index(job)}].workingDir"
        yield Problem(
            path, folder, f"{folder[:200]} is not a folder here", "create it, or name another"
        )


def folder_of(job: Job, document: Mapping[str, Any]) -> str:
    annotations = document.get("metadata", {}).get("annotations") or {}
    base = annotations.get(WORKING_DIRECTORY, "")
    return os.path.join(base, _container(job).get("workingDir", "")) or os.getcwd()  # noqa: PTH109, PTH118


def visible_gpus(node: Node, numbers: Iterable[int]) -> dict[str, str]:
    """Return the variables that let a process see only these GPUs of a node."""
    names = ",".join(gpu_names(node, numbers))
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": names,
        "NVIDIA_VISIBLE_DEVICES": names,
    }


def problems_here(job: Job) -> tuple[Problem, ...]:
    """Return the parts of a job that need a cluster."""
    return tuple(_iter_problems(job))


def notices_here(job: Job, written: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the fields that have no effect, or another effect, on one machine."""
    container, pod = _container(job), job.template.get("spec", {})
    index = _index(job)
    idle = WITHOUT_EFFECT - ({"image"} if job.container is not None else set())
    names = [f"{_TEMPLATE}.containers[{index}].{n}" for n in container if n in idle]
    names += [f"{_TEMPLATE}.{n}" for n in pod if n in POD_WITHOUT_EFFECT and n != "containers"]
    notices = [f"{name} has no effect on one machine" for name in names]
    if job.checkpoint.memory_mebibytes and job.container is not None:
        notices.append("spec.checkpoint.memory has no effect in a container on one machine")
    notice = notice_of(written.get("spec", {}))
    return (*notices, *((notice,) if notice else ()))


def _iter_problems(job: Job) -> Iterator[Problem]:
    container, pod = _container(job), job.template.get("spec", {})
    here, remedy = _index(job), "remove it, or run the job on a cluster"
    volume = _checkpoint_volume(job)
    for name in pod:
        if name not in POD_WITHOUT_EFFECT and not (name == "volumes" and _holds(pod[name], volume)):
            yield Problem(join(_TEMPLATE, name), pod[name], "needs a cluster", remedy)
    for place, other in enumerate(pod.get("containers", ())):
        if place != here:
            path = f"{_TEMPLATE}.containers[{place}]"
            yield Problem(path, other["name"], "is another container than the trainer", remedy)
    for name, value in container.items():
        is_known = name == "volumeMounts" and _holds(value, volume)
        if name not in HONOURED | WITHOUT_EFFECT and not is_known:
            yield Problem(
                join(f"{_TEMPLATE}.containers[{here}]", name), value, "needs a cluster", remedy
            )
    for place, variable in enumerate(container.get("env", ())):
        if "valueFrom" in variable:
            path = f"{_TEMPLATE}.containers[{here}].env[{place}].valueFrom"
            yield Problem(
                path, variable["name"], "needs a cluster", "write its value, or " + remedy
            )
    if job.roles:
        yield Problem("spec.auxiliaries", job.roles[0].name, "needs a cluster", remedy)


def _checkpoint_volume(job: Job) -> str:
    """
    Return the name of the volume that holds the job's own checkpoints on a cluster; empty without one.

    On one machine the job's own folder takes its place, so that one file serves both.
    """
    container = _container(job)
    folders = [each for each in container.get("env", ()) if each["name"] == CHECKPOINT_FOLDER]
    if not folders or not job.checkpoint.path.startswith(CHECKPOINT_REFERENCE):
        return ""
    folder = PurePosixPath(str(folders[-1].get("value", "")))
    for mount in _named(container.get("volumeMounts")):
        if mount.get("mountPath") and folder.is_relative_to(str(mount["mountPath"])):
            return str(mount["name"])
    return ""


def _holds(items: Any, volume: str) -> bool:
    """Return True if a list of volumes or mounts names this volume only."""
    named = _named(items)
    return (
        bool(named) and len(named) == len(items) and all(each["name"] == volume for each in named)
    )


def _named(items: Any) -> list[Mapping[str, Any]]:
    """Return the mappings with a name in a list that nothing has checked."""
    found = items if isinstance(items, list) else []
    return [each for each in found if isinstance(each, Mapping) and each.get("name")]


def _index(job: Job) -> int:
    containers = job.template.get("spec", {}).get("containers", ())
    return next(i for i, each in enumerate(containers) if each["name"] == TRAINER)


def _container(job: Job) -> Mapping[str, Any]:
    found: Mapping[str, Any] = job.template["spec"]["containers"][_index(job)]
    return found


class TooLongError(ValueError):
    """A text with its references filled in is longer than Linux passes to a program."""


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """
    Fill in ``$(NAME)``; ``$$`` is a dollar, and unknown names stay.

    The length is limited during the work: a chain of thirty variables, each naming the previous one twice, would use up
    all memory.
    """
    parts: list[str] = []
    length, position = 0, 0
    for match in _REFERENCE.finditer(text):
        filled = "$" if match[1] is None else variables.get(match[1], match[0])
        parts += (text[position : match.start()], filled)
        length += len(parts[-2]) + len(parts[-1])
        if length > LONGEST_WORD:
            break
        position = match.end()
    parts.append(text[position:])
    result = "".join(parts)
    if len(os.fsencode(result)) > LONGEST_WORD:
        raise TooLongError(
            f"it has more than {LONGEST_WORD:,} bytes when its $(NAME) are filled in"
        )
    return result
