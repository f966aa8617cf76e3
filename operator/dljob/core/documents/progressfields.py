"""The fields of `spec.progress`: how DLJob sees how far a training is."""

from typing import Final

from dljob.core.documents import expressions, jobforms
from dljob.core.documents.jobforms import DAY, PATH_LENGTH
from dljob.core.documents.language.records import Record
from dljob.core.documents.language.schemas import Decimal, Flag, Number, Text
from dljob.core.documents.rules import jobrules
from dljob.core.model import Progress

PROGRESS: Final = Record(
    description=(
        "Where DLJob reads the progress of the training: exactly one of log, file and http. Training"
        " code need not change if it prints its steps already."
    ),
    fixed_because="the SideCar in the running container was started with it",
    into=Progress,
    rules=jobrules.PROGRESS_RULES,
    fields={
        "log": Text(
            description=(
                "A regular expression of Python, searched in each line that the training prints."
                " Its named group iteration (or epoch, or sample or token, see samplesPerIteration)"
                " gives the progress; other named groups are metrics."
            ),
            max_length=expressions.LONGEST,
            check=jobforms.cannot_compile,
        ),
        "file": Text(
            description=(
                "A file to which the training appends one JSON object a line, with iteration (or"
                " epoch) and any metrics."
            ),
            max_length=PATH_LENGTH,
            form=jobforms.FOLDER,
        ),
        "http": Flag(
            description="Whether the training posts its progress to the SideCar over local HTTP.",
            default=False,
            writes=lambda http: http or None,
        ),
        "samplesPerIteration": Number(
            description=(
                "How many samples, or tokens, count as one iteration: the training reports them"
                " as sample or token in log, file or http, and its own steps do not count. For a batch"
                " per process, with which steps are larger on more GPUs."
            ),
            minimum=1,
            maximum=2**53,
        ),
        "stallSeconds": Decimal(
            description="After this number of seconds without progress DLJob reports the job as stalled.",
            minimum=1,
            maximum=30 * DAY,
            default=600,
        ),
        "restartSeconds": Decimal(
            description=(
                "After this number of seconds without progress DLJob ends the training, which"
                " hangs and so cannot save itself, and starts it again from its last checkpoint."
                " That counts as a crash; backoffLimit says how many are allowed. If left out,"
                " DLJob only reports it."
            ),
            minimum=1,
            maximum=30 * DAY,
        ),
    },
)
