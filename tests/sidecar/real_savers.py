"""
Trainings that save by real frameworks: Hugging Face Trainer, Lightning, and PyTorch's DCP.

Arguments and journal are those of :mod:`tests.sidecar.savers`. Model and optimizer count their steps: a
checkpoint is torn if it cannot be loaded, or if a count differs from its name. ``gap`` seconds pass
between two files of a checkpoint.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = 20000
STEP_SECONDS = 0.02
WIDTH = 500


class Story:
    """The requests to a training, and its journal."""

    def __init__(self, folder: str, journal: str, options: dict[str, str]) -> None:
        self.folder = Path(folder)
        self.journal = Path(journal)
        self.gap = float(options.get("gap", "0.3"))
        self.every = int(options.get("every", "100000"))
        self.is_asked = False
        self.has_begun = False

    def ask(self, *_: object) -> None:
        self.is_asked = True

    def take(self) -> bool:
        asked, self.is_asked = self.is_asked, False
        return asked

    def tell(self, line: str) -> None:
        with self.journal.open("a") as journal:
            journal.write(f"{line}\n")

    def step(self, number: int) -> None:
        time.sleep(STEP_SECONDS)
        if not self.has_begun:
            self.has_begun = True
            self.tell(f"trains {int(os.environ['MASTER_PORT']) - PORT}")
        print(f"step {number}", flush=True)  # noqa: T201 - it is how progress is read

    def find(self, expression: str) -> tuple[int, Path] | None:
        """Return the checkpoint with the highest step, even if it is torn."""
        found = ((re.fullmatch(expression, path.name), path) for path in self.folder.iterdir())
        return max(((int(match.group(1)), path) for match, path in found if match), default=None)

    def see_resumed(self, step: int, *counts: float) -> None:
        if any(int(count) != step for count in counts):
            self.tell(f"torn {counts} in the checkpoint of step {step}")
            sys.exit(3)
        self.tell(f"resumed {step}")

    def slow_down(self, owner: Any, name: str) -> None:
        """Delay a function of the framework that writes."""
        function: Callable[..., Any] = getattr(owner, name)

        def slow(*arguments: Any, **named: Any) -> Any:
            time.sleep(self.gap)
            return function(*arguments, **named)

        setattr(owner, name, slow)


def make_model() -> Any:
    import torch

    class Counting(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(WIDTH, WIDTH)
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
            if self.training:
                self.steps += 1
            return {"loss": self.layer(x).square().mean()}

    return Counting()


def count_of(optimizer: Any) -> float:
    return max((float(state["step"]) for state in optimizer.state.values()), default=0.0)


def train_by_trainer(story: Story) -> None:
    import torch
    import transformers

    story.slow_down(torch, "save")

    class Steps(transformers.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            counts = (named["model"].steps, count_of(named["optimizer"]))
            story.see_resumed(state.global_step, *counts)

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            story.step(state.global_step)
            control.should_save |= story.take()

    data = [{"x": torch.ones(WIDTH), "labels": torch.ones(1)} for _ in range(64)]
    arguments = transformers.TrainingArguments(
        output_dir=str(story.folder),
        max_steps=1_000_000,
        save_steps=story.every,
        save_total_limit=2,
        logging_steps=5,
        report_to=["tensorboard"],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(make_model(), arguments, train_dataset=data, callbacks=[Steps()])
    latest = transformers.trainer_utils.get_last_checkpoint(str(story.folder))
    trainer.train(resume_from_checkpoint=latest)


def train_by_lightning(story: Story) -> None:
    import lightning
    import torch

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: Any, _: int) -> Any:
            self.log("steps", self.model.steps)
            return self.model(batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

        def on_train_start(self) -> None:
            story.see_resumed(
                self.global_step, float(self.model.steps), count_of(self.trainer.optimizers[0])
            )

        def on_train_batch_end(self, *_: Any) -> None:
            story.step(self.global_step)
            if story.take() or self.global_step % story.every == 0:
                self.trainer.save_checkpoint(f"{story.folder}/epoch=0-step={self.global_step}.ckpt")

    found = story.find(r"epoch=0-step=(\d+)\.ckpt")
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=1_000_000,
        logger=lightning.pytorch.loggers.CSVLogger(str(story.folder), flush_logs_every_n_steps=1),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.DataLoader([torch.ones(WIDTH)] * 64, batch_size=8)
    # The checkpoint holds more than weights, which newer versions load only if an argument says so.
    names = inspect.signature(trainer.fit).parameters
    whole = {"weights_only": False} if "weights_only" in names else {}
    trainer.fit(Module(), data, ckpt_path=str(found[1]) if found else None, **whole)


def train_by_dcp(story: Story) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    story.slow_down(dcp.FileSystemWriter, "finish")
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    found = story.find(r"step_(\d+)")
    step = 0
    if found is not None:
        state = {"model": model.state_dict(), "step": torch.zeros(1)}
        dcp.load(state, checkpoint_id=str(found[1]), no_dist=True)
        model.load_state_dict(state["model"])
        step = int(state["step"])
    story.see_resumed(step, float(model.steps), step if found is None else found[0])
    while True:
        model(torch.ones(WIDTH))["loss"].backward()
        optimizer.step()
        step += 1
        story.step(step)
        if story.take() or step % story.every == 0:
            state = {"model": model.state_dict(), "step": torch.tensor([float(step)])}
            dcp.save(state, checkpoint_id=str(story.folder / f"step_{step}"), no_dist=True)


WAYS = {"trainer": train_by_trainer, "lightning-real": train_by_lightning, "dcp-real": train_by_dcp}


NEEDS = {
    "trainer": "transformers",
    "lightning-real": "lightning",
    "dcp-real": "torch.distributed.checkpoint",
}
"""The imported packages; PyTorch before 2.0 and some later builds lack the last one."""


def main(_token: str, way: str, folder: str, journal: str, *options: str) -> None:
    story = Story(folder, journal, dict(one.partition("=")[::2] for one in options))
    signal.signal(signal.SIGUSR1, story.ask)
    try:
        WAYS[way](story)
    except Exception as error:
        story.tell(f"torn {type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
