"""
PyTorch Lightning, as its documentation shows it: a LightningModule, a ModelCheckpoint, a Trainer.

python train.py --out checkpoints
"""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from dljob import training


class WorksWithDLJob(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        training.report(trainer.global_step)
        if training.should_save(trainer.global_step):
            trainer.save_checkpoint(training.folder() / f"step={trainer.global_step}.ckpt")


def make_data(count=4096):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 32, generator=generator)
    y = (x[:, :4].sum(dim=1, keepdim=True) > 0).float()
    return TensorDataset(x, y)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.net(x), y)
        if self.global_rank == 0 and self.global_step % 10 == 9:
            print(f"step {self.global_step + 1} loss={loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()

    L.seed_everything(0)
    trainer = L.Trainer(
        max_steps=args.steps,
        callbacks=[ModelCheckpoint(training.folder(args.out)), WorksWithDLJob()],
        devices=training.local_world_size(),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(make_data(), batch_size=64 // training.world_size(), shuffle=True)
    trainer.fit(Classifier(), loader, ckpt_path=training.latest())


if __name__ == "__main__":
    main()
