"""Fine-tunes with PyTorch and transformers, in portions of a given number of steps; see benchmarks/finetune.py.

    python transformers_training.py config_dir examples.jsonl dtype batch_size threads

It runs in another interpreter, because this project requires neither library. For each number on standard input it runs
that many training steps and prints their seconds. Batches, padding, optimizer and precision are the defaults of
transformers' own training loop (with --bf16).
"""

import json
import random
import sys
import time

import torch
from transformers import AutoConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def batches(examples, batch_size):
    """Yields random batches without end, each padded to its longest sequence."""
    while True:
        random.shuffle(examples)
        for start in range(0, len(examples) - batch_size + 1, batch_size):
            rows = examples[start : start + batch_size]
            longest = max(len(row["input_ids"]) for row in rows)
            padded = {
                name: torch.tensor([row[name] + [0] * (longest - len(row[name])) for row in rows])
                for name in ("input_ids", "token_type_ids")
            }
            lengths = torch.tensor([len(row["input_ids"]) for row in rows])
            mask = (torch.arange(longest) < lengths[:, None]).long()
            yield {**padded, "attention_mask": mask, "labels": torch.tensor([row["label"] for row in rows])}


def main():
    config_dir, examples_file, dtype, batch_size, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    random.seed(1)
    with open(examples_file, encoding="utf-8") as reader:
        data = batches([json.loads(line) for line in reader], int(batch_size))
    model = BertForSequenceClassification(AutoConfig.from_pretrained(config_dir)).train()
    exempt = ("bias", "LayerNorm.weight")  # without weight decay
    groups = [
        {"params": [p for name, p in model.named_parameters() if name.endswith(exempt) == is_exempt], "weight_decay": w}
        for is_exempt, w in ((False, 0.01), (True, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-5, fused=True)
    schedule = get_linear_schedule_with_warmup(optimizer, 100, 10000)
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
