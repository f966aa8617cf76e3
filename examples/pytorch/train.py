"""
Learns to tell ten kinds of images apart with a small ResNet, in as many processes as it is given.

The global batch is the same whatever their number is: each takes its part, and DistributedData-
Parallel averages the gradients. On SIGUSR1 the first process saves; a new start goes on from there.
"""

import argparse
import os
import pathlib
import signal

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels):
        super().__init__()
        # Norms of groups and not of batches, so that the share of a process does not matter.
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(4, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(4, channels),
        )

    def forward(self, images):
        return torch.relu(images + self.inner(images))


def make_model():
    """Make the same model everywhere."""
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 16, 3, padding=1), Block(16), nn.MaxPool2d(2), Block(16)]
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))


def make_batch(iteration, count):
    """Draw images of ten kinds, each a pattern under noise; the same ones for the same iteration."""
    patterns = torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(iteration + 1)
    labels = torch.randint(10, (count,), generator=random)
    return patterns[labels] + 2.0 * torch.randn(count, 3, 16, 16, generator=random), labels


def find_device():
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cuda", torch.cuda.current_device())


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--iterations", type=int, default=400)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--checkpoints", type=pathlib.Path, default=".")
    options = options.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    wanted = []
    signal.signal(signal.SIGUSR1, lambda *_: wanted.append(True))

    device = find_device()
    model = make_model().to(device)
    replica = model
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        replica = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    options.checkpoints.mkdir(parents=True, exist_ok=True)
    file, begin = options.checkpoints / "latest.pt", 0
    if file.exists():
        saved = torch.load(file, map_location=device)
        begin = saved["iteration"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    for iteration in range(begin, options.iterations):
        images, labels = make_batch(iteration, options.batch)
        images, labels = images[rank::world].to(device), labels[rank::world].to(device)
        loss = nn.functional.cross_entropy(replica(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach() / world
        if world > 1:
            dist.reduce(shown, dst=0)
        if rank == 0:
            print(f"step {iteration + 1} loss={shown.item():.6f}", flush=True)
        if rank == 0 and (wanted or iteration + 1 == options.iterations):
            wanted.clear()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "iteration": iteration + 1}, file.with_suffix(".part"))
            file.with_suffix(".part").replace(file)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
