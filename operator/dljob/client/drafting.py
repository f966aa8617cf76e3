"""
A DLJob made of a command and of options: what ``dljob run`` submits instead of a file.

Fields without an option get values that fit an ordinary training script: one GPU, a length that is not known
beforehand, and progress that is read from the lines which most scripts print (``step 12``, ``iter: 12``, a bar
of tqdm). Everything is checked afterwards like a file, by the same schema.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from dljob.client.backend import Json
from dljob.client.demands import Demand

USUAL_PROGRESS = (
    r"(?i)(?:(?:"
    # step 12, [Iter: 12/100], iteration=12, nanoGPT's iter 12: loss 3.2
    r"(?<!val )(?<!eval )(?<!test )(?<!ation )\b(?:step|iteration|iter)\b[ :=#\[(]{1,3}"
    # A bar of tqdm, Lightning or Hugging Face: 12%|#2        | 12/100 [00:01<00:07]. Not that of a validation or of the
    # data, nor one that counts epochs, nor one below another bar, after which the cursor goes up
    r"|^(?!\W*(?:val(?:id|\b)|eval|test|predict|sanity|epochs?:|map|filter|(?:down|up)?load|fetch|generat|tokeniz))"
    r"(?!.*\x1b\[A)[^|]*\|[^|]*\| *(?=\d+/\d+ \[)"
    # Train Epoch: 1 [640/60000 (1%)], and Epoch: [0][  10/5005]
    r"|^(?:train )?epoch:? *\[?\d+\]? *\[ *(?=\d+/\d+[\] ])"
    # | epoch   1 |   200/ 2983 batches
    r"|\| *(?=\d+/ *\d+ batches)"
    # xgboost's and LightGBM's [12]<tab>train-rmse:0.5
    r"|^\[(?=\d+\]\t)"
    # Keras: 12/100 [==>...], in version 3 a bar of other characters between commands for colours; a prediction has no loss
    r"|^(?:\x1b\[1m)? *(?=\d+/\d+(?:\x1b\[0m)? (?:\x1b\[\d+m)*(?:\u2501|\[[=>.]).* loss:)"
    r")(?P<iteration>\d+)"
    # Epoch 3/10, Epoch: [3], of a training that prints no steps; not in a line that has them
    r"|^\W*(?:train(?:ing)? )?epoch\b[ :=#\[(]{1,3}(?P<epoch>\d+)(?!.*\b(?:step|iteration|iter|batch(?:es)?)\b))"
)
"""The progress lines of most training scripts and frameworks. Where a line counts within an epoch, so does the number."""

LONGEST_NAME = 40
_NO_NAME = re.compile(r"[^a-z0-9]+")
_SCRIPT = re.compile(r"(.+)\.(?:py|sh|pyz)$")


class Draft(NamedTuple):
    """The command line of ``dljob run``, option by option."""

    words: tuple[str, ...]
    demand: Demand
    name: str = ""
    image: str = ""
    framework: str | None = None
    processes: str | None = None
    model: str | None = None
    iterations: int | None = None
    batch_size: int | None = None
    priority: int | None = None
    retries: int = 0
    deadline: float | None = None
    workdir: str | None = None
    environment: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    progress_log: str | None = None
    progress_file: str | None = None
    checkpoint_signal: str | None = None
    checkpoint_command: str | None = None
    checkpoint_path: str | None = None
    checkpoint_files: str | None = None
    checkpoint_shared: bool = False

    def placed(self, here: PurePath) -> "Draft":
        """Resolve relative folders against the folder where the command runs."""
        base = here / (self.workdir or "")
        return self._replace(
            progress_file=_below(base, self.progress_file),
            checkpoint_path=_below(base, self.checkpoint_path),
        )


def _below(base: PurePath, path: str | None) -> str | None:
    # $(DLJOB_CHECKPOINT_DIR) is absolute when it is filled in.
    return path if path is None or path.startswith("$(") else str(base / path)


def name_of(words: Sequence[str]) -> str:
    """Name a job by its script: ``train`` for ``python -u lib/train.py``."""
    scripts = [found[1] for word in words if (found := _SCRIPT.match(PurePath(word).name))]
    if scripts:
        chosen = scripts[0]
    elif "-m" in words[:-1]:
        chosen = words[words.index("-m") + 1].rpartition(".")[2]
    else:
        chosen = PurePath(words[0]).name
    name = _NO_NAME.sub("-", chosen.lower()).strip("-")[:LONGEST_NAME].strip("-")
    return name or "job"


def build(draft: Draft, name: str) -> Json:
    """Write the document of a job of this name."""
    labels = {"labels": dict(draft.labels)} if draft.labels else {}
    log = draft.progress_log
    if log is None and draft.progress_file is None:
        log = USUAL_PROGRESS
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": name, **labels},
        "spec": _given(
            gpus=dict(draft.demand.of_new_job()),
            framework=draft.framework,
            processes=draft.processes,
            training=_given(
                iterations=draft.iterations,
                untilExit=True if draft.iterations is None else None,
                batchSize=draft.batch_size,
            ),
            profile={"model": draft.model} if draft.model else None,
            progress=_given(log=log, file=draft.progress_file),
            checkpoint=_checkpoint(draft) or None,
            priority=draft.priority,
            backoffLimit=draft.retries,
            activeDeadlineSeconds=None if draft.deadline is None else round(draft.deadline),
            template={"spec": {"containers": [_container(draft)]}},
        ),
    }


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _checkpoint(draft: Draft) -> Json:
    command = None
    if draft.checkpoint_command is not None:
        import shlex  # noqa: PLC0415 - for those who give a command

        command = shlex.split(draft.checkpoint_command)
    asks = draft.checkpoint_signal is not None or command is not None
    return _given(
        signal=draft.checkpoint_signal,
        command=command,
        # After a request by SIGTERM, the end of the process confirms the checkpoint.
        confirm="file" if asks and draft.checkpoint_path is not None else None,
        path=draft.checkpoint_path,
        files=draft.checkpoint_files,
        shared=draft.checkpoint_shared or None,
    )


def _container(draft: Draft) -> Json:
    variables = [{"name": name, "value": value} for name, value in draft.environment.items()]
    return _given(
        name="trainer",
        image=draft.image or None,
        command=list(draft.words),
        workingDir=draft.workdir,
        env=variables or None,
    )
