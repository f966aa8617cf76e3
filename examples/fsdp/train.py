"""
A script for torchrun that shards model and optimizer: FSDP, with checkpoints by torch.distributed.checkpoint.

torchrun --nproc-per-node=2 train.py --out checkpoints
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dljob import training


def make_data(count=4096):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 32, generator=generator)
    y = (x[:, :4].sum(dim=1, keepdim=True) > 0).float()
    return TensorDataset(x, y)


def find_latest(folder):
    """Return the newest folder that holds a whole checkpoint: its metadata is written last."""
    found = Path(folder).glob("step-*/.metadata")
    return max((each.parent for each in found), key=lambda each: int(each.name[5:]), default=None)


def load(folder, model, optimizer):
    """Go on from the newest checkpoint, whatever number of ranks wrote it; return its step."""
    latest = find_latest(folder)
    if latest is None:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=latest)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return int(state["step"])


def save(folder, model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": torch.tensor(step)}
    dcp.save(state, checkpoint_id=Path(folder) / f"step-{step}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()

    out = training.folder(args.out)
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu")

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    # With a mesh the state is told as DTensors, which also hold a part of which a rank has nothing.
    mesh = init_device_mesh(device.type, (world,))
    model = FullyShardedDataParallel(net.to(device), device_mesh=mesh, device_id=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = load(out, model, optimizer)
    print(f"rank {rank} of {world} begins at step {step}", flush=True)

    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch // world, sampler=sampler)
    criterion = torch.nn.BCEWithLogitsLoss()
    while step < args.steps:
        sampler.set_epoch(step)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 10 == 0:
                print(f"step {step} loss={loss.item():.4f}", flush=True)
            if training.should_save(step) or step % args.save_every == 0 or step == args.steps:
                save(out, model, optimizer, step)
            if step == args.steps:
                break
    dist.barrier()


if __name__ == "__main__":
    main()
