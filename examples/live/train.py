"""
A script for torchrun that draws its own batches: DistributedDataParallel, a checkpoint every so many steps.

torchrun --nproc-per-node=2 train.py --out checkpoints
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from dljob import training


def make_data(count=4096):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 32, generator=generator)
    y = (x[:, :4].sum(dim=1, keepdim=True) > 0).float()
    return TensorDataset(x, y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    training.init_process_group("nccl" if cuda else "gloo")
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    latest = str(training.folder(args.out) / "latest.pt")

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(
        device
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    data = make_data()
    batches = training.batches(len(data), args.batch, steps=args.steps)
    if os.path.exists(latest):
        state = torch.load(latest, map_location=device)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        batches.load_state_dict(state["batches"])
    model = training.live(net, optimizer, batches, wrap=DistributedDataParallel)
    criterion = torch.nn.BCEWithLogitsLoss()
    for batch in batches:
        step = batch.step
        x, y = data[batch.samples]
        optimizer.zero_grad()
        loss = criterion(model(x.to(device)), y.to(device)) * batch.weight
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss={loss.item():.4f}", flush=True)
        if training.should_save(step) or step % args.save_every == 0 or step == args.steps:
            if dist.get_rank() == 0:
                state = {
                    "model": net.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "batches": batches.state_dict(),
                }
                torch.save(state, latest + ".tmp")
                os.replace(latest + ".tmp", latest)
        training.boundary(step)
    dist.barrier()


if __name__ == "__main__":
    main()
