"""Trains with PyTorch and transformers, a requested number of steps at a time; see benchmarks/transformers_peer.py.

    python transformers_training.py config_dir examples.jsonl dtype batch_size threads

It runs in another interpreter, because this project requires neither library. For each number on standard input it runs
that many training steps and prints their seconds. The model's class is in the config. Batches, padding, optimizer and
precision are the defaults of transformers' own training loop (with --bf16).
"""

import json
import random
import sys
import time

import torch
import transformers


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
    """Returns a list of values per token, padded to a length. A single value per example is returned unchanged."""
    return value + [0] * (length - len(value)) if isinstance(value, list) else value


def main():
    config_dir, examples_file, dtype, batch_size, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    random.seed(1)
    with open(examples_file, encoding="utf-8") as reader:
        data = batches([json.loads(line) for line in reader], int(batch_size))
    config = transformers.AutoConfig.from_pretrained(config_dir)
    model = getattr(transformers, config.architectures[0])(config).train()
    exempt = ("bias", "LayerNorm.weight")  # without weight decay
    groups = [
        {"params": [p for name, p in model.named_parameters() if name.endswith(exempt) == is_exempt], "weight_decay": w}
        for is_exempt, w in ((False, 0.01), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-5, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 100, 10000)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = model(**next(data)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
