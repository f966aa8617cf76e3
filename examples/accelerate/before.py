"""
A training loop with Hugging Face Accelerate, as its documentation shows it.

accelerate launch --cpu --num_processes 2 train.py --out checkpoints
"""

import argparse
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


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

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    batch = args.batch // accelerator.num_processes
    loader = DataLoader(make_data(), batch_size=batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    criterion = torch.nn.BCEWithLogitsLoss()
    out = args.out
    step = 0
    accelerator.print(f"{accelerator.num_processes} processes begin at step {step}", flush=True)

    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % 10 == 0:
                accelerator.print(f"step {step} loss={loss.item():.4f}", flush=True)
            if step % args.save_every == 0 or step == args.steps:
                accelerator.save_state(os.path.join(out, f"checkpoint-{step}"))
            if step == args.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
