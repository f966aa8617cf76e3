"""
FSDP2 (fully_shard) whose ranks join and leave: the shards of those that leave move through memory.

It needs PyTorch 2.6 or later. All former ranks gather the whole state before some of them leave; all new ranks
shard a model of their own and take their parts of it.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dljob import training

WHOLE = StateDictOptions(full_state_dict=True)


class Sharded:
    """Model and optimizer over the present ranks."""

    def __init__(self, device):
        self.device = device

    def shard(self):
        """Build both for the ranks of now: training.live() calls this at the start and after each change."""
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        ).to(self.device)
        # Another name after each change, because PyTorch keeps what it has computed for an equal mesh, in which
        # this process may have had another rank.
        name = f"ranks-{os.environ.get('DLJOB_GENERATION')}"
        world = dist.get_world_size()
        mesh = init_device_mesh(self.device.type, (world,), mesh_dim_names=(name,))
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        return self.model

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer, options=WHOLE)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=WHOLE,
        )


def make_data(count=4096):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 32, generator=generator)
    y = (x[:, :4].sum(dim=1, keepdim=True) > 0).float()
    return x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    training.init_process_group("nccl" if cuda else "gloo")
    # A process keeps its GPU, so the device is taken once.
    device = torch.device(f"cuda:{training.local_rank()}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    latest = training.folder(args.out) / "latest.pt"

    x, y = make_data()
    sharded = Sharded(device)
    batches = training.batches(len(x), args.batch, steps=args.steps)
    model = training.live(batches, sharded=sharded, wrap=Sharded.shard)
    if latest.exists() and not training.joined_at():
        state = torch.load(latest, map_location=device)
        sharded.load_state_dict(state["sharded"])
        batches.load_state_dict(state["batches"])
    print(
        f"rank {training.rank()} of {training.world_size()} begins at step {batches.step}",
        flush=True,
    )

    criterion = torch.nn.BCEWithLogitsLoss()
    for batch in batches:
        sharded.optimizer.zero_grad()
        logits = model(x[batch.samples].to(device))
        loss = criterion(logits, y[batch.samples].to(device)) * batch.weight
        loss.backward()
        sharded.optimizer.step()
        step = batch.step
        if training.is_leader() and step % 10 == 0:
            print(f"step {step} loss={loss.item():.4f}", flush=True)
        # All ranks gather the state, so they save before the boundary, at which newcomers begin.
        if training.should_save(step) or step % args.save_every == 0 or step == args.steps:
            state = {"sharded": sharded.state_dict(), "batches": batches.state_dict()}
            if training.is_leader():
                unnamed = latest.with_suffix(".tmp")
                torch.save(state, unnamed)
                unnamed.replace(latest)
        training.boundary(step)
    dist.barrier()


if __name__ == "__main__":
    main()
