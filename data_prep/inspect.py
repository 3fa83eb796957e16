"""Prints examples of TFRecord files as text, and the counts in their metadata files.

    python -m data_prep.inspect FILE [--vocab_file=vocab.txt] [--num_examples=5] [--baselines]

FILE is a name, a glob pattern, or several of them, separated by commas or spaces. Files of the original program have no
metadata, so their records are counted. Tokens to predict are in braces: {cat -> [MASK]}, {cat -> dog}, or {cat} if the
token is unchanged.
"""

import collections
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from bert_tf.runtime import files, path_checks, program, reporting
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.sequences.example_format import NOT_RECORDS, Metadata, record_offsets
from bert_tf.text.vocabulary import CLS, CONTINUATION, PAD, SEP, UNK, fits_record, load_vocab

_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "Vocabulary of the examples. Default: vocab.txt next to FILE.")
_NUM_EXAMPLES = flags.DEFINE_integer("num_examples", 5, "Number of examples to print.", lower_bound=0)
_BASELINES = flags.DEFINE_boolean("baselines", False, "Read all examples, and print the losses of simple models.")

_REQUIRED = ("input_ids", "input_mask", "next_sentence_labels", "segment_ids")
_LABELS = ("masked_lm_ids", "masked_lm_positions", "masked_lm_weights")


def main(*patterns: str) -> None:
    """Calls `show` for the files in the arguments."""
    paths = [path for path in path_checks.expand_patterns([*patterns], "FILE") if not path.endswith(NOT_RECORDS)]
    if not paths:
        raise InputError(f"FILE: {first_of(patterns)} matches only metadata files. Pass the files of records.")
    vocab_file = _VOCAB_FILE.value or os.path.join(os.path.dirname(paths[0]), "vocab.txt")
    show(paths, vocab_file, _NUM_EXAMPLES.value, _BASELINES.value)


def show(paths: Sequence[str], vocab_file: str, num_examples: int, with_baselines: bool = False) -> None:
    """Prints the first examples of TFRecord files, and the sums of the counts in the metadata files.

    If `with_baselines` is True, also prints the result of `baselines`.

    Raises:
      InputError: if a file can't be read, or does not match its metadata file or the vocabulary.
    """
    tokens = list(load_vocab(files.require_file(vocab_file, "--vocab_file")))
    counts = collections.Counter(files=len(paths))
    for path in paths:
        num_records = len(record_offsets(files.require_file(path, "FILE", may_be_empty=True), "FILE")) - 1
        metadata = Metadata.read(path, "FILE")
        if metadata and files.size(path) != metadata.file_size:
            raise InputError(
                f"FILE: {path} has {files.size(path)} bytes, but its metadata file says {metadata.file_size}. "
                "It was truncated or changed. Regenerate it."
            )
        if metadata and not fits_record(metadata.tokenizer, vocab_file):
            raise InputError(
                f"--vocab_file: {path} was made with another vocabulary than {vocab_file}. "
                "Use the vocabulary of the data."
            )
        remaining = max(0, num_examples - counts["records"])
        for number, example in enumerate(read_examples(path, len(tokens), remaining), 1):
            print(f"{path}, example {number}: {describe(example, tokens)}\n")
        counts.update(metadata.counts if metadata else {"records": num_records})
    print(reporting.table([{"count": name, "value": count} for name, count in counts.items()]))
    if with_baselines:
        values = baselines((example for path in paths for example in read_examples(path, len(tokens))), tokens)
        print("\n" + reporting.table([{"baseline": name, "value": value} for name, value in values.items()]))


def baselines(examples: Iterable[Mapping[str, Any]], tokens: Sequence[str]) -> dict[str, float]:
    """Returns the losses (in nats) and accuracies of models that ignore their input.

    The uniform model gives all tokens the same probability. The other models give each label its frequency in the
    examples. The entropy of the labels is the lowest loss of such a model.

    Args:
      examples: pre-training examples. If they are not masked, all tokens of the text are counted as labels.
      tokens: the token of each id.

    Raises:
      InputError: if there are no labels.
    """
    from scipy.stats import entropy

    masked, next_sentence = collections.Counter[int](), collections.Counter[int]()
    for example in examples:
        masked.update(masked_ids(example, tokens))
        next_sentence.update(example["next_sentence_labels"])
    if not masked:
        raise InputError("FILE: has no tokens to predict. Use files with examples.")
    [(most_frequent, count)] = masked.most_common(1)
    return {
        f"masked-LM loss, uniform (ln {len(tokens)})": math.log(len(tokens)),
        "masked-LM loss, token frequencies": float(entropy([*masked.values()])),
        f"masked-LM accuracy, always {tokens[most_frequent]!r}": count / masked.total(),
        "next-sentence loss, label frequencies": float(entropy([*next_sentence.values()])),
        "next-sentence accuracy, most frequent label": max(next_sentence.values()) / next_sentence.total(),
        f"fraction of {UNK} in the masked tokens": sum(masked[i] for i in masked if tokens[i] == UNK) / masked.total(),
    }


def masked_ids(example: Mapping[str, Any], tokens: Sequence[str]) -> list[int]:
    """Returns the original ids of the masked tokens, or of all tokens of the text if the example is not masked."""
    if "masked_lm_ids" in example:
        return example["masked_lm_ids"][: int(sum(example["masked_lm_weights"]))]
    return [index for index in example["input_ids"] if tokens[index] not in (PAD, CLS, SEP)]


def read_examples(path: str, vocab_size: int, count: int = -1) -> Iterator[dict[str, Any]]:
    """Yields the features of the first `count` examples of a TFRecord file, or of all examples for -1.

    Raises:
      InputError: if a record is damaged, or is not a pre-training example with a vocabulary of this size.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        for number, record in enumerate(tf.data.TFRecordDataset(path).take(count).as_numpy_iterator(), 1):
            features = tf.train.Example.FromString(record).features.feature
            example = {name: list(x.int64_list.value or x.float_list.value) for name, x in features.items()}
            if missing := [name for name in _REQUIRED + _LABELS * ("masked_lm_ids" in example) if name not in example]:
                raise InputError(f"FILE: {path}: example {number} has no {missing[0]}. Use pre-training examples.")
            if (largest := max(example["input_ids"] + example.get("masked_lm_ids", []))) >= vocab_size:
                raise InputError(
                    f"--vocab_file: has {vocab_size} tokens, but {path}: example {number} contains id {largest}. "
                    "Use the vocabulary of the examples."
                )
            yield example
    except (tf.errors.OpError, DecodeError) as error:
        raise InputError(
            f"FILE: {path} is damaged or not a TFRecord file of examples ({error}). Regenerate it."
        ) from None


def describe(example: Mapping[str, Sequence[int]], tokens: Sequence[str]) -> str:
    """Returns an example from `read_examples` as text. `tokens` is the vocabulary, in the order of the ids."""
    labels = {}
    if "masked_lm_ids" in example:  # otherwise masks are drawn during training
        labels = dict(zip(example["masked_lm_positions"], masked_ids(example, tokens), strict=False))
    length = sum(example["input_mask"])
    texts = ["", ""]
    for position, (index, segment) in enumerate(zip(example["input_ids"], example["segment_ids"], strict=True)):
        if position < length:
            label = tokens[labels.get(position, index)]
            shown = label.removeprefix(CONTINUATION)
            if position in labels:
                shown = f"{{{label}}}" if tokens[index] == label else f"{{{label} -> {tokens[index]}}}"
            texts[segment] += shown if label.startswith(CONTINUATION) else f" {shown}"
    next_sentence = "B is from another document" if example["next_sentence_labels"][0] else "B follows A"
    first, second = (text.strip() for text in texts)
    return f"{length} tokens, {len(labels)} to predict; {next_sentence}\n  A: {first}\n  B: {second}"


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, takes_names=True)


if __name__ == "__main__":
    cli()
