"""Trains and uses a small BERT in minutes, from raw text to predictions; `make quickstart` runs this script.

    python -m examples.quickstart ["A sentence to classify" ...]

Each step is one command, which is printed before it runs. A step is skipped if its output already exists. The outputs
are in build/quickstart: the vocabulary, TFRecords, two runs with TensorBoard logs, and learning curves as PNG files.
"""

import collections
import pathlib
import shlex
import subprocess
import sys
import time

import bert_tf.api  # noqa: F401 (must be first, because it sets how TensorFlow runs)
from bert_tf.text.vocabulary import load_vocab
from bert_tf.training import log
from data_prep import inspect

OUTPUT = pathlib.Path("build", "quickstart")
VOCAB, CORPUS, HELDOUT = OUTPUT / "vocab.txt", OUTPUT / "corpus.tfrecord", OUTPUT / "heldout.tfrecord"
PRETRAINED, FINETUNED, TEST = OUTPUT / "pretrained", OUTPUT / "authors", OUTPUT / "sentences.tsv"
SENTENCES = (
    "She could not help being pleased, and her sisters were very happy to dance.",
    "The harpoon flew from his hand, and the great whale rolled in the dark sea.",
    "Natural selection acts only by preserving variations which are useful to each species.",
    "The emperor led the legions against the barbarians, and the senate obeyed.",
)
MASKED = (
    "I do not [MASK] it.",
    "It would [MASK] better to go.",
    "This is one [MASK] the most important facts.",
    "He could [MASK] see the whale.",
    "It is a [MASK] of the first importance.",
)
# A model first learns to predict a token from the adjacent tokens. With short sequences, this takes only minutes.
LENGTHS = ("--max_seq_length=16", "--max_predictions_per_seq=3")


def main() -> None:
    """Runs every step."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    corpus = "examples/corpus/*.txt"

    step(
        "Learn a vocabulary of WordPiece tokens from four books",
        VOCAB,
        ["-m", "data_prep.build_vocab", f"--input_file={corpus}", f"--output_file={VOCAB}", "--vocab_size=4000"],
    )
    for text, records, dupe_factor in ((corpus, CORPUS, 20), ("examples/heldout.txt", HELDOUT, 5)):
        step(
            f"Make short masked sequences from {text}",
            records,
            [
                *("-m", "data_prep.create_pretraining_data", f"--input_file={text}", f"--output_file={records}"),
                *(f"--vocab_file={VOCAB}", f"--dupe_factor={dupe_factor}", *LENGTHS, "--masked_lm_prob=0.2"),
            ],
        )
    step(
        "Pre-train a tiny BERT (2 layers, hidden size 128) on masked tokens",
        PRETRAINED / "metrics.png",
        [
            *("run_pretraining.py", f"--input_file={CORPUS}", f"--output_dir={PRETRAINED}", f"--vocab_file={VOCAB}"),
            *("--bert_config_file=examples/tiny.json", *LENGTHS, "--objective=mlm", "--do_train"),
            *("--train_batch_size=128", "--learning_rate=2e-3", "--bias_correction"),
            *("--num_train_steps=1200", "--num_warmup_steps=100", "--save_checkpoints_steps=400"),
            *(f"--eval_input_file={HELDOUT}", "--eval_batch_size=64", "--eval_steps=200"),
        ],
    )
    log.plot_metrics(str(PRETRAINED), ("loss", "masked_lm_accuracy"), str(PRETRAINED / "metrics.png"))
    accuracy = [line for line in log.read_metrics(str(PRETRAINED)) if line["kind"] == "eval"][-1]["masked_lm_accuracy"]
    piece, share = most_frequent_label(HELDOUT, VOCAB)
    print(f"\nMasked tokens of held-out text: {accuracy:.0%} correct. Always guessing {piece!r}: {share:.0%} correct.")

    write_sentences(sys.argv[1:] or SENTENCES)
    step(
        "Fine-tune it to predict the author of a sentence, evaluate it, and predict the authors of new sentences",
        None,
        [
            *("run_classifier.py", "--task_name=text", "--data_dir=examples/authors", f"--output_dir={FINETUNED}"),
            *(f"--test_file={TEST}", f"--vocab_file={VOCAB}"),
            *(f"--bert_config_file={PRETRAINED / 'bert_config.json'}", f"--init_checkpoint={PRETRAINED}"),
            *("--do_train", "--do_eval", "--do_predict", "--max_seq_length=64", "--learning_rate=5e-4"),
            *("--train_batch_size=32", "--num_train_epochs=3"),
        ],
    )
    print("\n" + (FINETUNED / f"{TEST.stem}_predictions.tsv").read_text())
    step(
        "Predict masked words (the model is small and relies mostly on neighbouring words)",
        None,
        ["-m", "bert_tf.fill_mask", f"--model={PRETRAINED}", *(f"--text={text}" for text in MASKED)],
    )
    print(f"\nDone in {(time.monotonic() - start) / 60:.1f} minutes. Results:")
    for path in sorted(OUTPUT.glob("*/*.png")):
        print(f"  {path}")
    print(f"  tensorboard --logdir {OUTPUT}")


def step(title: str, output: pathlib.Path | None, command: list[str]) -> None:
    """Prints and runs a Python command unless the output exists. If the command fails, the quickstart ends."""
    print(f"\n=== {title}\n$ python {shlex.join(command)}", flush=True)
    if output is not None and (output.exists() or list(output.parent.glob(f"{output.name}-*"))):
        print(f"(skipped: {output} already exists)")
        return
    finished = subprocess.run([sys.executable, *command], check=False)
    if finished.returncode:
        sys.exit(f"The command above failed (exit status {finished.returncode}).")


def most_frequent_label(records: pathlib.Path, vocab_file: pathlib.Path) -> tuple[str, float]:
    """Returns the most frequently masked token in TFRecords, and its fraction of the masked tokens."""
    pieces = list(load_vocab(str(vocab_file)))
    counts = collections.Counter[int]()
    for example in inspect.read_examples(str(records), len(pieces)):
        counts.update(inspect.masked_ids(example, pieces))
    [(label, count)] = counts.most_common(1)
    return pieces[label], count / counts.total()


def write_sentences(sentences: list[str] | tuple[str, ...]) -> None:
    """Writes a test set of sentences."""
    lines = ["text", *(" ".join(sentence.split()) for sentence in sentences)]
    TEST.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
