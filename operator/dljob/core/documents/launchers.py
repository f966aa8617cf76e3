"""
The default of ``spec.processes``, which follows from the command of the trainer.

A launcher, such as torchrun, starts the processes of a node by itself. If DLJob started one for each GPU, each
launcher would start processes for all GPUs, and all of them would listen at the same port.

:mod:`dljob.core.documents.jobfile` calls this module when it reads a job, and the command when it shows a specification.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dljob.core.documents.rules.podrules import TRAINER
from dljob_wire.problems import Problem

PER_GPU: Final = "perGpu"
PER_NODE: Final = "perNode"

LAUNCHERS: Final = ("torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec")
"""Commands that start several processes of the command that follows them."""
OTHER_NAMES: Final[Mapping[str, str]] = {"accelerate-launch": "accelerate"}
MODULES: Final[Mapping[str, str]] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""The modules of these commands, for ``python -m``."""
FIXED: Final = re.compile(
    r"(?<!\S)(?:--?nproc[-_]per[-_]node|--num[-_]processes|--num[-_]gpus|-np?)[= ]\d+(?!\S)"
)
"""The options by which launchers start the same number of processes at each start."""
SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
PREFIXES: Final = frozenset(
    {
        *("exec", "command", "env", "nice", "ionice", "chrt", "time", "nohup", "setsid", "numactl"),
        *("taskset", "timeout", "stdbuf", "unbuffer", "sudo", "gosu", "su-exec", "setpriv", "tini"),
        *("dumb-init", "nsys", "xvfb-run"),
    }
)
"""Commands that become, or only surround, the command that follows them."""
RUNNERS: Final = tuple(
    [name, "run"]
    for name in (
        *("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda", "mamba", "micromamba"),
    )
)
"""Pairs of words that run the command that follows in an environment."""
STARTING: Final = frozenset({*LAUNCHERS, *OTHER_NAMES, *SHELLS, *PREFIXES})
"""The commands other than Python that may follow a prefix or a runner."""
PYTHON_TAKES_A_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
SHELL_WORDS: Final = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{"})
"""Words of a shell that a command may follow."""
ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\+?=")


def processes_of(spec: Mapping[str, Any]) -> str:
    """Return ``perGpu`` or ``perNode``, as the specification says or by its default."""
    return str(spec.get("processes") or default_processes(spec))


def default_processes(spec: Mapping[str, Any]) -> str:
    """Return the default of ``processes``."""
    # Several processes without ranks would each take themselves for the only one.
    is_alone = spec.get("framework", "none") == "none"
    return PER_NODE if is_alone or launcher_of(spec.get("template")) else PER_GPU


def problem_of(spec: Mapping[str, Any], most: int) -> Problem | None:
    """Refuse a launcher that would start once for each GPU of a job with up to ``most`` GPUs."""
    launcher = launcher_of(spec.get("template"))
    if spec.get("processes") != PER_GPU or not launcher or most == 1:
        return None
    message = (
        f'"{PER_GPU}" starts {launcher} once for each GPU, and each of them starts processes for all GPUs, at the'
        " same port"
    )
    remedy = f"write processes: perNode, or start your script by python instead of {launcher}"
    return Problem("spec.processes", PER_GPU, message, remedy)


def notice_of(spec: Mapping[str, Any]) -> str:
    """Name what a launcher does with the GPUs of a job, where the user may not expect it; empty otherwise."""
    launcher = launcher_of(spec.get("template"))
    fixed = FIXED.search(" ".join(_command(spec.get("template")))) if launcher else None
    gpus = spec.get("gpus")
    if (
        fixed
        and isinstance(gpus, Mapping)
        and (len(gpus.get("options") or ()) > 1 or "max" in gpus)
    ):
        return (
            f"{fixed[0]} stays the same when the number of GPUs changes, so some GPUs are idle or have several"
            f" processes; docs/training.md says what to write for {launcher}"
        )
    if not launcher or spec.get("processes") or spec.get("framework", "none") == "none":
        return ""
    return (
        f"spec.processes is perNode, because {launcher} starts the processes of a node by itself;"
        " see docs/training.md"
    )


def launcher_of(template: object) -> str:
    """Name the launcher that the trainer of a template starts; empty if it starts none."""
    return _launcher_in(_command(template))


def _command(template: object) -> list[str]:
    """Return the command and arguments of the trainer's container; a wrong template has none."""
    spec = template.get("spec") if isinstance(template, Mapping) else None
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, Mapping) and container.get("name") == TRAINER:
            words = [container.get("command"), container.get("args")]
            lists = [each for each in words if isinstance(each, list)]
            return [word for each in lists for word in each if isinstance(word, str)]
    return []


def _launcher_in(words: list[str]) -> str:
    if not words:
        return ""
    name, rest = _name(words[0]), words[1:]
    if name in SHELLS:
        return _launcher_in_script(rest)
    if name in PREFIXES or words[:2] in RUNNERS:
        return _launcher_in(_after_prefix(rest))
    if _is_python(name):
        return _launcher_of_python(rest)
    is_launcher = name in LAUNCHERS and (name != "accelerate" or rest[:1] == ["launch"])
    return name if is_launcher else OTHER_NAMES.get(name, "")


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _is_python(name: str) -> bool:
    return re.fullmatch(r"python[\d.]*", name) is not None


def _launcher_of_python(words: list[str]) -> str:
    """Find the module that Python runs; what follows a script is for the script."""
    left = iter(words)
    for word in left:
        if word == "-m":
            return MODULES.get(next(left, ""), "")
        if word in PYTHON_TAKES_A_VALUE:
            next(left, "")
        elif not word.startswith("-"):
            return ""
    return ""


def _after_prefix(words: list[str]) -> list[str]:
    """
    Return the command that follows a prefix with its options and arguments.

    Each prefix has its own options that take a value, so the command begins at the first word that can start
    processes. A word after a script is an argument of the script.
    """
    for index, word in enumerate(words):
        name = _name(word)
        if name.endswith((".py", ".sh")):
            return []
        if _is_python(name) or name in STARTING or words[index : index + 2] in RUNNERS:
            return words[index:]
    return []


def _launcher_in_script(words: list[str]) -> str:
    """Look into the script that a shell gets by ``-c``; a script in a file is not read."""
    script = _script(words)
    return next((found for each in _commands(script) if (found := _launcher_in(each))), "")


def _script(words: list[str]) -> str:
    """Return the first word that is no option, if ``c`` is among the options before it."""
    left, has_script = iter(words), False
    for word in left:
        if word[:1] not in ("-", "+") or word in ("-", "--"):
            given = next(left, "") if word in ("-", "--") else word
            return given if has_script else ""
        if word.startswith("--"):
            continue
        has_script = has_script or (word.startswith("-") and "c" in word)
        # As in -eo pipefail: the word after o is the name of an option.
        if word.endswith(("o", "O")):
            next(left, "")
    return ""


def _commands(script: str) -> Iterable[list[str]]:
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    command: list[str] = []
    try:
        for word in lexer:
            if word.strip(";&|()\n"):
                command.append(word)
            else:
                yield _simple(command)
                command = []
    except ValueError:
        # A quotation does not end, which the shell reports.
        pass
    yield _simple(command)


def _simple(command: list[str]) -> list[str]:
    """Return a command without the shell's words and the assignments at its beginning."""
    for index, word in enumerate(command):
        if word not in SHELL_WORDS and not ASSIGNMENT.match(word):
            return command[index:]
    return []
