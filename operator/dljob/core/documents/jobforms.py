"""
The forms of the strings of a DLJob: names of Kubernetes, paths, signals, regular expressions.

A rule that a pattern can express is a :class:`Form`, which Kubernetes checks too; any other rule is a function that
returns a complaint.
"""

import re
from typing import Final

from dljob.core.documents import expressions
from dljob.core.documents.language.schemas import Complaint, Form
from dljob.core.problems import nearest, shown

# Signals that a process can handle, by the names of Linux.
SIGNALS: Final = tuple(
    f"SIG{name}"
    for name in (
        *("ABRT", "ALRM", "CONT", "HUP", "INT", "IO", "PROF", "PWR", "QUIT", "TERM", "TRAP"),
        *("TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ"),
    )
)


def _as_label(text: str) -> str:
    """Turn a name into the nearest one that Kubernetes takes."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")
    return f"write {name}" if name else "give a name such as resnet18-imagenet"


LABEL: Final = Form(
    r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    "is no name that Kubernetes takes (small letters, digits and '-' in between, at most 63)",
    _as_label,
)
LABEL_KEY: Final = Form(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "is no name of a label or annotation",
    lambda _: "give letters, digits, '-', '_' and '.', with a domain and '/' before it if you like",
)
LABEL_VALUE: Final = Form(
    r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?",
    "is no value of a label",
    lambda _: "give at most 63 letters, digits, '-', '_' and '.', first and last a letter or digit",
)
CONTROLLER: Final = Form(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[!-.0-~]([!-~]*[!-~])?",
    "is no name of a controller",
    lambda _: "write a domain, '/' and a name, such as kueue.x-k8s.io/multikueue",
)
GPU_TYPE: Final = Form(
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    "is no type of GPU",
    lambda _: "give one type an item, such as V100 or NVIDIA-H200",
)
WORD: Final = Form(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "is no name of a metric",
    lambda _: "give letters, digits and '_', such as top5",
)
MODULE: Final = Form(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
    "is no name of a Python module",
    lambda _: "write it as after import, such as torch or torch.distributed",
)
FOLDER: Final = Form(
    r"(\$\(DLJOB_CHECKPOINT_DIR\)|/[^\x00-\x1f]*)(/[^\x00-\x1f]*)?",
    "is not an absolute path",
    lambda _: "begin it with /, as the training process sees it",
)
PROGRAM: Final = Form(
    r"(/[^/\x00-\x1f]+)+",
    "is no absolute path of a program",
    lambda _: "write the whole path, such as /opt/envs/train/bin/python",
)
IMAGE: Final = Form(
    r"[A-Za-z0-9][A-Za-z0-9._/:@-]*",
    "is no name of an image",
    lambda _: "write it as podman or docker lists it, such as docker.io/pytorch/pytorch:2.9.0",
)
MOUNTED: Final = Form(
    r"(/[^/\x00-\x1f]+)+",
    "is no absolute path of a folder",
    lambda _: "write the whole path without a / at its end, such as /data",
)
VARIABLE: Final = Form(
    r"[A-Za-z_][A-Za-z0-9_]*",
    "is no name of a variable",
    lambda _: "write its name alone, such as WANDB_API_KEY",
)
PATTERN: Final = Form(
    r"([^/.\x00-\x1f][^/\x00-\x1f]*|\.[^/.\x00-\x1f][^/\x00-\x1f]*)"
    r"(/([^/.\x00-\x1f][^/\x00-\x1f]*|\.[^/.\x00-\x1f][^/\x00-\x1f]*))*",
    "is not a pattern of names below a folder",
    lambda _: "give one such as checkpoint-* or *.pt, without / at its ends and without ..",
)
MEMORY: Final = Form(
    r"[1-9][0-9]{0,5}(Mi|Gi)",
    "is no amount of memory",
    lambda _: "give a number with Mi or Gi, such as 4Gi",
)
FILE_NAME: Final = Form(
    r"[^/\x00-\x1f]*[^/.\x00-\x1f][^/\x00-\x1f]*",
    "is not a name of a file",
    lambda _: "give a name without a folder, such as DONE",
)
URL_PATH: Final = Form(
    r"(:[1-9][0-9]{0,4})?/[!-~]*",
    "is not a path of HTTP",
    lambda _: "begin it with /, or with a port: :8080/checkpoint",
)
SIGNAL: Final = Form(
    "|".join(SIGNALS),
    "is not a signal that a process can handle",
    lambda _: "write it like SIGUSR1",
)
TYPE_PART: Final = Form(
    r"[!-~]([ -~]*[!-~])?",
    "holds characters that are not plain",
    lambda _: "give letters, digits and signs of ASCII, without spaces around them",
)
SECONDS: Final = Form(
    r"[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?",
    "is not a number of seconds",
    lambda _: 'give the seconds since the simulation began, such as "90"',
)


def cannot_compile(text: str) -> Complaint | None:
    """Complain about a regular expression that Python cannot compile in a bounded time."""
    if len(text) > expressions.LONGEST:
        return None  # The complaint about the length is more helpful.
    try:
        expressions.find_groups(text)
    except expressions.WrongExpression as error:
        return Complaint(
            f"{shown(text)} {error}", "correct it, and write it in single quotes in YAML"
        )
    return None


def not_a_variable(text: str) -> Complaint | None:
    """Complain about a name that Kubernetes refuses when it creates the pod."""
    if text and (not text.isascii() or not text.isprintable() or "=" in text):
        wrong = f"{shown(text)} is no name of a variable"
        return Complaint(wrong, "give letters, digits and '_', without '='")
    return None


def not_a_signal(text: str) -> Complaint | None:
    """Complain about a signal that does not exist, or that would save nothing."""
    if text in SIGNALS:
        return None
    name = text.upper().removeprefix("SIG")
    if name in {"KILL", "STOP"}:
        deadly = f"{shown(text)} cannot be handled by a process, so nothing would be saved"
        return Complaint(deadly, "use SIGUSR1 or another that your training handles")
    wrong = f"{shown(text)} is not a signal that a process can handle"
    # Numbers differ between machines.
    if name.isdigit():
        return Complaint(wrong, "write its name, such as SIGUSR1")
    full = f"SIG{name}"
    guess = full if full in SIGNALS else nearest(full, SIGNALS)
    remedy = f"did you mean {guess}?" if guess else "write it like SIGUSR1"
    return Complaint(wrong, remedy)


DAY: Final = 86_400
YEAR: Final = 366 * DAY
PATH_LENGTH: Final = 1024
