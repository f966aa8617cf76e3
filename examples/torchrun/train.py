"""
A script for torchrun, as one finds it: DistributedDataParallel, a checkpoint every so many steps.

torchrun --nproc-per-node=2 train.py --out checkpoints
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu"
    latest = str(training.folder(args.out) / "latest.pt")

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(
        device
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    if os.path.exists(latest):
        state = torch.load(latest, map_location=device)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
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
                if rank == 0:
                    state = {
                        "model": net.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "step": step,
                    }
                    torch.save(state, latest + ".tmp")
                    os.replace(latest + ".tmp", latest)
            if step == args.steps:
                break
    dist.barrier()


if __name__ == "__main__":
    main()
