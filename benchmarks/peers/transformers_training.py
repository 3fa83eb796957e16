"""Trains with PyTorch and transformers, a requested number of steps at a time; see benchmarks/train_step.py.

    python transformers_training.py DIRECTORY dtype batch_size threads

The script runs in another interpreter, because this project does not require these libraries. DIRECTORY contains
examples.jsonl and the model's config, which names the model class. For each number N on standard input, the script runs
N training steps and prints the elapsed seconds. Batches, padding, optimizer and precision are the defaults of
transformers' own training loop (with --bf16). The model trains on the GPU if PyTorch finds one. Other scripts use the
optimizer and the step.
"""

import json
import os
import random
import sys
import time

import torch
import transformers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Optimizer:
    """AdamW as in transformers' own training loop, with a linear schedule."""

    def __init__(self, model, rate, warmup_steps, steps, dtype="float32", **options):
        exempt = ("bias", "LayerNorm.weight")  # without weight decay
        decayed, others = [], []
        for name, parameter in model.named_parameters():
            (others if name.endswith(exempt) else decayed).append(parameter)
        groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        self._model, self._uses_bfloat16 = model.to(DEVICE).train(), dtype == "bfloat16"
        self._optimizer = torch.optim.AdamW(groups, lr=rate, fused=True, **options)
        self._schedule = transformers.get_linear_schedule_with_warmup(self._optimizer, warmup_steps, steps)

    def step(self, batch):
        """Trains on a batch of the model's arguments, and returns the loss."""
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=self._uses_bfloat16):
            loss = self._model(**on_device(batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        return loss


def on_device(batch):
    """Copies the tensors of a batch to the device of the model."""
    return {name: values.to(DEVICE) for name, values in batch.items()}


def batches(examples, batch_size):
    """Yields random batches forever, each padded to its longest sequence."""
    while True:
        random.shuffle(examples)
        for start in range(0, len(examples) - batch_size + 1, batch_size):
            rows = examples[start : start + batch_size]
            lengths = torch.tensor([len(row["input_ids"]) for row in rows])
            longest = int(lengths.max())
            batch = {name: torch.tensor([padded(row[name], longest) for row in rows]) for name in rows[0]}
            yield {**batch, "attention_mask": (torch.arange(longest) < lengths[:, None]).long()}


def padded(value, length):
    """Pads a list with one value per token to a length. Returns a single number unchanged."""
    return value + [0] * (length - len(value)) if isinstance(value, list) else value


def main():
    directory, dtype, batch_size, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    random.seed(1)
    with open(os.path.join(directory, "examples.jsonl"), encoding="utf-8") as reader:
        data = batches([json.loads(line) for line in reader], int(batch_size))
    config = transformers.AutoConfig.from_pretrained(directory)
    optimizer = Optimizer(getattr(transformers, config.architectures[0])(config), 5e-5, 100, 10000, dtype)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            loss = optimizer.step(next(data))
        loss.item()  # waits for the GPU
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
