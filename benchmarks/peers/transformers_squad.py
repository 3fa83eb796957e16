"""Fine-tunes and predicts SQuAD with PyTorch and transformers, for the comparison in docs/results/index.md.

    python benchmarks/peers/transformers_squad.py MODEL TRAIN_JSON DEV_JSON OUTPUT_DIR SEED
    python run_squad.py --predict_file=DEV_JSON --evaluate_file=OUTPUT_DIR/predictions.json ...

It runs in another interpreter, because this project requires neither library. Windows, labels and decoding are the same
as in transformers' question-answering example. The optimizer and the batches (grouped by length) are the same as in its
training loop, and the hyperparameters the same as in its documentation. It takes about an hour on 2 cores. In SQuAD 2.0
the answer is "" if the score of no answer is higher than the score of the best answer.
"""

import json
import os
import random
import sys

import numpy as np
import torch
from transformers import BertForQuestionAnswering, BertTokenizerFast
from transformers_training import Optimizer, on_device

LENGTH, STRIDE, EPOCHS, BATCH, RATE, WARMUP = 384, 128, 3, 16, 1e-4, 0.1
N_BEST, LONGEST_ANSWER = 20, 30


def read(path):
    """Returns the questions of a file, and whether some of them can have no answer."""
    with open(path, encoding="utf-8") as reader:
        articles = json.load(reader)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    rows = [{**question, "context": paragraph["context"]} for paragraph in paragraphs for question in paragraph["qas"]]
    return rows, any("is_impossible" in row for row in rows)


def windows_of(rows, tokenizer):
    """Returns windows of the contexts with their questions. The span is [CLS] if the answer is not in the window."""
    windows = []
    for row in rows:
        encoded = tokenizer(
            row["question"].lstrip(),
            row["context"],
            truncation="only_second",
            max_length=LENGTH,
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for i, ids in enumerate(encoded["input_ids"]):
            pairs = zip(encoded["offset_mapping"][i], encoded.sequence_ids(i), strict=True)
            offsets = [offset if part == 1 else None for offset, part in pairs]
            window = {"row": row, "input_ids": ids, "token_type_ids": encoded["token_type_ids"][i], "offsets": offsets}
            windows.append({**window, "span": answer_span(row, offsets)})
    return windows


def answer_span(row, offsets):
    """Returns the first and the last token of the first correct answer."""
    if not row["answers"]:
        return 0, 0
    begin = row["answers"][0]["answer_start"]
    end = begin + len(row["answers"][0]["text"])
    text = [i for i, offset in enumerate(offsets) if offset is not None]
    if offsets[text[0]][0] > begin or offsets[text[-1]][1] < end:
        return 0, 0
    return max(i for i in text if offsets[i][0] <= begin), min(i for i in text if offsets[i][1] >= end)


def tensors(windows):
    """Returns the model's inputs, padded to the longest window."""
    longest = max(len(window["input_ids"]) for window in windows)
    padded = {
        name: torch.tensor([window[name] + [0] * (longest - len(window[name])) for window in windows])
        for name in ("input_ids", "token_type_ids")
    }
    lengths = torch.tensor([len(window["input_ids"]) for window in windows])
    return {**padded, "attention_mask": (torch.arange(longest) < lengths[:, None]).long()}


def batches(windows):
    """Yields random batches of windows of similar lengths forever."""
    while True:
        shuffled = random.sample(windows, len(windows))
        epoch = []
        for begin in range(0, len(windows), 16 * BATCH):
            part = sorted(shuffled[begin : begin + 16 * BATCH], key=lambda window: -len(window["input_ids"]))
            epoch += [part[i : i + BATCH] for i in range(0, len(part) - BATCH + 1, BATCH)]
        random.shuffle(epoch)
        yield from epoch


def train(model, windows, steps):
    """Trains for a number of steps."""
    optimizer = Optimizer(model, RATE, int(steps * WARMUP), steps, eps=1e-6)
    data = batches(windows)
    for step in range(steps):
        batch = next(data)
        starts, ends = torch.tensor([window["span"] for window in batch]).T
        loss = optimizer.step({**tensors(batch), "start_positions": starts, "end_positions": ends})
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} of {steps}, loss {loss.item():.3f}", file=sys.stderr, flush=True)


@torch.inference_mode()
def answer(model, windows, may_be_none):
    """Returns question id -> best answer."""
    model.eval()
    best, no_answer = {}, {}
    by_length = sorted(windows, key=lambda window: len(window["input_ids"]))
    for begin in range(0, len(windows), BATCH):
        batch = by_length[begin : begin + BATCH]
        output = model(**on_device(tensors(batch)))
        for window, starts, ends in zip(
            batch, output.start_logits.cpu().numpy(), output.end_logits.cpu().numpy(), strict=True
        ):
            qas_id, offsets, context = window["row"]["id"], window["offsets"], window["row"]["context"]
            starts, ends = starts[: len(offsets)], ends[: len(offsets)]
            no_answer[qas_id] = min(no_answer.get(qas_id, np.inf), starts[0] + ends[0])
            for i in np.argsort(-starts)[:N_BEST]:
                for j in np.argsort(-ends)[:N_BEST]:
                    if offsets[i] and offsets[j] and i <= j < i + LONGEST_ANSWER:
                        scored_text = starts[i] + ends[j], context[offsets[i][0] : offsets[j][1]]
                        best[qas_id] = max(best.get(qas_id, (-np.inf, "")), scored_text, key=lambda scored: scored[0])
    return {
        qas_id: "" if may_be_none and score > best.get(qas_id, (-np.inf, ""))[0] else best.get(qas_id, (0, ""))[1]
        for qas_id, score in no_answer.items()
    }


def main():
    model_dir, train_file, dev_file, output_dir, seed = sys.argv[1:]
    random.seed(int(seed))
    torch.manual_seed(int(seed))
    tokenizer = BertTokenizerFast.from_pretrained(model_dir)
    model = BertForQuestionAnswering.from_pretrained(model_dir)
    rows, _ = read(train_file)
    train(model, windows_of(rows, tokenizer), len(rows) * EPOCHS // BATCH)
    rows, may_be_none = read(dev_file)
    answers = answer(model, windows_of(rows, tokenizer), may_be_none)
    os.makedirs(output_dir, exist_ok=True)
    with open(os.path.join(output_dir, "predictions.json"), "w", encoding="utf-8") as writer:
        json.dump(answers, writer, ensure_ascii=False, indent=4)


if __name__ == "__main__":
    main()
