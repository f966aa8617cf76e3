"""
The rules between the fields of ``spec.checkpoint``.

:mod:`dljob.core.documents.rules.jobrules` describes how rules are written.
"""

from typing import Final

from dljob.core.documents.language.records import Rule
from dljob.core.problems import listed

CHECKPOINT_REQUESTS: Final = ("signal", "command", "http")
NAMED_SIGNS: Final = ("huggingface", "accelerate", "dcp", "lightning", "keras")
"""The signs of frameworks that give each checkpoint a name of its own."""

CHECKPOINT_RULES: Final = (
    Rule(
        name="checkpoint-is-asked-for-once",
        reads=CHECKPOINT_REQUESTS,
        message=f"asks for a checkpoint in more than one way of {listed(CHECKPOINT_REQUESTS, 'and')}",
        remedy="keep the one that your training listens to",
        holds=lambda checkpoint: (
            sum(bool(checkpoint.get(name)) for name in CHECKPOINT_REQUESTS) <= 1
        ),
        cel=(
            "(has(self.signal) ? 1 : 0) + (has(self.command) ? 1 : 0)"
            " + (has(self.http) ? 1 : 0) <= 1"
        ),
    ),
    Rule(
        name="confirming-file-has-a-path",
        reads=("confirm", "path"),
        at="confirm",
        message="waits for a new file, and path does not say where",
        remedy="give path, the folder that checkpoints are written to",
        holds=lambda checkpoint: checkpoint.get("confirm") != "file" or "path" in checkpoint,
        cel="!has(self.confirm) || self.confirm != 'file' || has(self.path)",
    ),
    Rule(
        name="checkpoint-files-have-a-path",
        reads=("files", "path"),
        at="files",
        message="names files below path, and path does not say where",
        remedy="give path, the folder that checkpoints are written to",
        holds=lambda checkpoint: "files" not in checkpoint or "path" in checkpoint,
        cel="!has(self.files) || has(self.path)",
    ),
    Rule(
        name="marker-completes",
        reads=("complete", "marker"),
        at="marker",
        message="is not used, because complete is not marker",
        remedy="write complete: marker, or leave marker out",
        holds=lambda checkpoint: "marker" not in checkpoint or checkpoint["complete"] == "marker",
        cel="!has(self.marker) || has(self.complete) && self.complete == 'marker'",
    ),
    Rule(
        name="memory-confirms-by-file",
        reads=("confirm", "memory"),
        at="memory",
        message="is not used, because confirm is not file",
        remedy="write confirm: file, or leave memory out",
        holds=lambda checkpoint: "memory" not in checkpoint or checkpoint["confirm"] == "file",
        cel="!has(self.memory) || has(self.confirm) && self.confirm == 'file'",
    ),
    Rule(
        name="memory-has-a-sign",
        reads=("complete", "files", "memory"),
        at="memory",
        message="needs checkpoints that have names of their own and a sign of completeness",
        remedy=f"write complete: {listed(NAMED_SIGNS, 'or')}, or complete: marker or rename with files",
        holds=lambda checkpoint: (
            "memory" not in checkpoint
            or checkpoint["complete"] in NAMED_SIGNS
            or (checkpoint["complete"] in ("marker", "rename") and "files" in checkpoint)
        ),
        cel=(
            "!has(self.memory) || has(self.complete) && (self.complete in"
            f" {list(NAMED_SIGNS)} || self.complete in ['marker', 'rename'] && has(self.files))"
        ),
    ),
    Rule(
        name="confirming-log-has-an-expression",
        reads=("confirm", "confirmLog"),
        at="confirm",
        message="waits for a line in the log, and confirmLog does not say which",
        remedy="give confirmLog, a regular expression that finds it",
        holds=lambda checkpoint: checkpoint.get("confirm") != "log" or "confirmLog" in checkpoint,
        cel="!has(self.confirm) || self.confirm != 'log' || has(self.confirmLog)",
    ),
    Rule(
        name="expression-confirms-by-log",
        reads=("confirm", "confirmLog"),
        at="confirmLog",
        message="is not used, because confirm is not log",
        remedy="write confirm: log, or leave confirmLog out",
        holds=lambda checkpoint: "confirmLog" not in checkpoint or checkpoint["confirm"] == "log",
        cel="!has(self.confirmLog) || has(self.confirm) && self.confirm == 'log'",
    ),
)
