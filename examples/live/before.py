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
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(device)
    os.makedirs(args.out, exist_ok=True)
    latest = os.path.join(args.out, "latest.pt")

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(
        device
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    data, chance = make_data(), torch.Generator()
    step = 0
    if os.path.exists(latest):
        state = torch.load(latest, map_location=device)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(net)
    criterion = torch.nn.BCEWithLogitsLoss()
    while step < args.steps:
        step += 1
        # All ranks draw the same batch, and each takes its part of it.
        drawn = torch.randint(len(data), (args.batch,), generator=chance.manual_seed(step))
        x, y = data[drawn[dist.get_rank() :: dist.get_world_size()]]
        optimizer.zero_grad()
        loss = criterion(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss={loss.item():.4f}", flush=True)
        if step % args.save_every == 0 or step == args.steps:
            if dist.get_rank() == 0:
                state = {
                    "model": net.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step,
                }
                torch.save(state, latest + ".tmp")
                os.replace(latest + ".tmp", latest)
    dist.barrier()


if __name__ == "__main__":
    main()
