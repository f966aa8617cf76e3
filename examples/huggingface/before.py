"""
Hugging Face Trainer, as its documentation shows it: a small BERT that is trained from nothing.

python train.py --out checkpoints
"""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification, set_seed
from transformers import Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """Random words; the label says whether the first one comes early in the alphabet."""

    def __init__(self, count=2048, length=16):
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(1, 200, (count, length), generator=generator)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        words = self.words[index]
        return {"input_ids": words, "labels": int(words[0] < 100)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()

    set_seed(0)
    config = BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir=args.out,
        max_steps=args.steps,
        per_device_train_batch_size=64,
        learning_rate=1e-3,
        save_steps=500,
        save_total_limit=3,
        logging_steps=10,
        disable_tqdm=True,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model, arguments, train_dataset=Sentences())
    trainer.train()


if __name__ == "__main__":
    main()
