"""Fine-tunes with PyTorch and transformers, and evaluates; see benchmarks/side_by_side.py.

    python transformers_finetuning.py JOB.json

The script runs in another interpreter, because this project does not require these libraries. The job file contains the
type of the task (pairs, choices, tags or texts), the directory of the model, and the examples for training and
evaluation. It also contains the batches as indices of examples, and the data type of matrix multiplications. The script
prints the training time in seconds and the accuracy. Each batch is padded to its longest sequence. Optimizer, precision
and clipping are the defaults of transformers' own training loop. The script uses the fast tokenizer, and a GPU if
PyTorch finds one.
"""

import json
import sys
import time
import types

import torch
import transformers
from transformers_training import DEVICE, Optimizer, on_device

CLASSES = {
    "pairs": transformers.AutoModelForSequenceClassification,
    "choices": transformers.AutoModelForMultipleChoice,
    "tags": transformers.AutoModelForTokenClassification,
}
_IGNORED = -100  # the label of a token without a tag


class Vectors(torch.nn.Module):
    """A model of sentence-transformers with the loss of pairs of texts."""

    def __init__(self, job):
        super().__init__()
        from sentence_transformers import SentenceTransformer, losses

        self.encoder = SentenceTransformer(job["model"])
        self.loss = losses.MultipleNegativesRankingLoss(self.encoder)

    def forward(self, **batch):
        """Returns the loss of a batch, as models of transformers do."""
        columns = [{n.partition(" ")[2]: v for n, v in batch.items() if n.startswith(c)} for c in ("first", "second")]
        return types.SimpleNamespace(loss=self.loss(columns, None))

    def recall(self, examples):
        """Returns the fraction of first texts whose most similar second text is in the same pair, or equal to it."""
        texts = sorted({e["second"] for e in examples})
        first, second = (
            self.encoder.encode(x, convert_to_tensor=True) for x in ([e["first"] for e in examples], texts)
        )
        best = self.encoder.similarity(first, second).argmax(-1).tolist()
        return sum(texts[i] == e["second"] for i, e in zip(best, examples, strict=True)) / len(examples)


def encoded(job, tokenizer, examples):
    """Returns a dictionary for each example. The values are lists; for choices, one list for each ending."""
    options = {"truncation": True, "max_length": job["length"]}
    if job["kind"] == "pairs":
        rows = tokenizer([e["first"] for e in examples], [e["second"] for e in examples], **options)
        return [{n: v[i] for n, v in rows.items()} | {"labels": e["label"]} for i, e in enumerate(examples)]
    if job["kind"] == "choices":
        rows = [tokenizer([e["first"]] * len(e["second"]), e["second"], **options) for e in examples]
        return [dict(row) | {"labels": e["label"]} for row, e in zip(rows, examples, strict=True)]
    if job["kind"] == "texts":
        rows = {c: tokenizer([e[c] for e in examples], **options) for c in ("first", "second")}
        return [{f"{c} {n}": v[i] for c in rows for n, v in rows[c].items()} for i, _ in enumerate(examples)]
    rows = tokenizer([e["words"] for e in examples], is_split_into_words=True, **options)
    found = []
    for i, example in enumerate(examples):
        words = rows.word_ids(i)
        first = [word is not None and word not in words[:at] for at, word in enumerate(words)]
        tags = [example["tags"][word] if is_first else _IGNORED for word, is_first in zip(words, first, strict=True)]
        found.append({n: v[i] for n, v in rows.items()} | {"labels": tags})
    return found


def collated(rows):
    """Returns a batch of tensors, padded to the longest sequence."""
    if "labels" not in rows[0]:
        return {n: torch.tensor([padded(n, row[n], max(len(r[n]) for r in rows)) for row in rows]) for n in rows[0]}
    longest = max(len(ids) for row in rows for ids in nested(row["input_ids"]))
    batch = {name: torch.tensor([padded(name, row[name], longest) for row in rows]) for name in rows[0]}
    return {"labels": batch.pop("labels"), **batch}


def nested(ids):
    """Returns the sequences of an example."""
    return ids if isinstance(ids[0], list) else [ids]


def padded(name, value, length):
    """Pads lists of values per token."""
    if not isinstance(value, list):
        return value
    if isinstance(value[0], list):
        return [padded(name, each, length) for each in value]
    return value + [_IGNORED if name == "labels" else 0] * (length - len(value))


def train(job, model, rows):
    """Trains on the batches of the job."""
    steps = len(job["batches"])
    optimizer = Optimizer(model, job["learning_rate"], steps // 10, steps, job["dtype"])
    for numbers in job["batches"]:
        loss = optimizer.step(collated([rows[i] for i in numbers]))
    loss.item()  # waits for the GPU


def accuracy(job, model, rows):
    """Returns the fraction of correct predictions, over examples or words."""
    correct = total = 0
    model.eval()
    for start in range(0, len(rows), 8):
        batch = on_device(collated(rows[start : start + 8]))
        with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=job["dtype"] == "bfloat16"):
            predicted = model(**batch).logits.argmax(-1)
        counted = batch["labels"] != _IGNORED
        correct += int((predicted == batch["labels"])[counted].sum())
        total += int(counted.sum())
    return correct / total


def main():
    with open(sys.argv[1], encoding="utf-8") as reader:
        job = json.load(reader)
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    if job["kind"] == "texts":
        model = Vectors(job)
    else:
        config = transformers.AutoConfig.from_pretrained(job["model"], num_labels=job["classes"])
        make = CLASSES[job["kind"]]
        model = make.from_pretrained(job["model"], config=config) if job["has_weights"] else make.from_config(config)
    rows = encoded(job, tokenizer, job["train"])
    start = time.perf_counter()
    train(job, model, rows)
    seconds = time.perf_counter() - start
    if job["kind"] == "texts":
        score = model.recall(job["dev"])
    else:
        score = accuracy(job, model, encoded(job, tokenizer, job["dev"]))
    print(json.dumps({"training": seconds, "accuracy": score}))


if __name__ == "__main__":
    main()
