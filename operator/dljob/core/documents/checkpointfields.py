"""The fields of `spec.checkpoint`: where a job saves itself, how it is asked to, and how that is confirmed."""

from typing import Final

from dljob.core.documents import expressions, jobforms
from dljob.core.documents.jobforms import DAY, PATH_LENGTH
from dljob.core.documents.language.records import Many, Record
from dljob.core.documents.language.schemas import Decimal, Flag, Text
from dljob.core.documents.rules import checkpointrules
from dljob.core.model import Checkpoint

CHECKPOINT_SIGNS: Final = (
    "auto",
    "settled",
    "rename",
    "marker",
    "huggingface",
    "accelerate",
    "dcp",
    "lightning",
    "keras",
    "tensorflow",
    "deepspeed",
    "megatron",
)


CHECKPOINT: Final = Record(
    description=(
        "How the training saves itself before its process is stopped. One of signal, command and"
        " http asks for it; SIGTERM, the grace period and SIGKILL follow. With none of them"
        " SIGTERM itself is the request."
    ),
    fixed_because="the SideCar in the running container was started with it",
    default={},
    into=Checkpoint,
    rules=checkpointrules.CHECKPOINT_RULES,
    fields={
        "signal": Text(
            description="The signal that asks for a checkpoint, such as SIGUSR1.",
            max_length=16,
            check=jobforms.not_a_signal,
            form=jobforms.SIGNAL,
        ),
        "command": Many(
            description="A command, run in the training container, that makes a checkpoint.",
            remedy='write a list of its words, such as ["python", "save.py"]',
            min_items=1,
            max_items=64,
            items=Text(description="A word of the command.", min_length=0, max_length=4096),
        ),
        "http": Text(
            description=(
                "A path that DLJob requests by POST from the training process, with a port in"
                " front of it if needed."
            ),
            max_length=PATH_LENGTH,
            form=jobforms.URL_PATH,
        ),
        "to": Text(
            description="Which processes DLJob asks: that of rank 0, or all of them.",
            max_length=8,
            choices=("leader", "all"),
            default="leader",
        ),
        "confirm": Text(
            description=(
                "How DLJob sees that the checkpoint is written: a new checkpoint under path, a line in the log"
                " that confirmLog finds, or the exit of the process."
            ),
            max_length=8,
            choices=("file", "log", "exit"),
            default="exit",
        ),
        "confirmLog": Text(
            description=(
                "With confirm: log, the regular expression of Python that finds the confirming"
                " line."
            ),
            max_length=expressions.LONGEST,
            check=jobforms.cannot_compile,
        ),
        "path": Text(
            description=(
                "The folder that checkpoints are written to, as the training sees it."
                " $(DLJOB_CHECKPOINT_DIR) stands for the job's own: on one machine it is made and removed"
                " with the job; on a cluster the env of the trainer's container says where it is."
            ),
            max_length=PATH_LENGTH,
            form=jobforms.FOLDER,
        ),
        "files": Text(
            description=(
                "Which files or folders below path are one checkpoint each, as a pattern: checkpoint-*,"
                " *.pt, logs/**/*.ckpt. If left out, a framework's own names, or all of path together."
                " Logs beside them never count."
            ),
            max_length=PATH_LENGTH,
            form=jobforms.PATTERN,
        ),
        "complete": Text(
            description=(
                "How DLJob sees that a checkpoint is complete: by the marks of a framework"
                " (huggingface, accelerate, dcp, lightning, keras, tensorflow, deepspeed,"
                " megatron), by a file that is written last (marker), by its name (rename), or"
                " because its files have not changed for long enough (settled). auto takes the"
                " marks that it recognises, else settled."
            ),
            max_length=16,
            choices=CHECKPOINT_SIGNS,
            default="auto",
        ),
        "marker": Text(
            description=(
                "With complete: marker, the name of the file that is written last, into the folder of"
                " the checkpoint or into path, and that holds at least one byte. If left out,"
                " .dljob-complete."
            ),
            max_length=128,
            form=jobforms.FILE_NAME,
        ),
        "memory": Text(
            description=(
                "How much memory may hold checkpoints, such as 4Gi: at least twice what one takes. The training"
                " writes to memory and goes on while DLJob writes the checkpoint out to path, where alone it"
                " counts. On Kubernetes it is a part of the memory that the trainer's container may use. If left"
                " out, the training writes to path itself."
            ),
            max_length=8,
            form=jobforms.MEMORY,
            attribute="memory_mebibytes",
            reads=lambda text: int(text[:-2]) << (10 if text.endswith("Gi") else 0),
            writes=lambda mebibytes: f"{mebibytes}Mi" if mebibytes else None,
        ),
        "settleSeconds": Decimal(
            description=(
                "The number of seconds without a change after which an unmarked checkpoint counts"
                " as complete. If left out, it follows from the job's former checkpoints, with 2"
                " for the first."
            ),
            minimum=0,
            maximum=DAY,
        ),
        "shared": Flag(
            description=(
                "Whether path is the same folder on every node. If not, the job never moves to"
                " another node once it has trained."
            ),
            default=False,
        ),
        "trusted": Flag(
            description=(
                "Whether the job loses nothing when it is stopped, although no checkpoint of it was"
                " confirmed, as training that saves each step by itself. A job without a checkpoint"
                " that works keeps the GPUs it starts with."
            ),
            default=False,
        ),
        "vet": Flag(
            description=(
                "Whether DLJob moves torn checkpoints into .dljob-set-aside below path before each start, so"
                " that the training finds the latest whole one. If not, it reports torn checkpoints and"
                " leaves them where they are."
            ),
            default=False,
        ),
        "timeoutSeconds": Decimal(
            description="After this number of seconds DLJob gives a checkpoint up and stops the process.",
            minimum=0,
            maximum=DAY,
            default=60,
        ),
        "graceSeconds": Decimal(
            description="The number of seconds between SIGTERM and SIGKILL.",
            minimum=0,
            maximum=3600,
            default=10,
        ),
    },
)
