"""Makes a small corpus of invented words and a vocabulary, and prepares the corpus in this process."""

import random
import re
import struct

from bert_tf.sequences.masking import MaskingPolicy
from bert_tf.text.vocabulary import vocabulary_hash
from data_prep.corpus.files import find_input_files
from data_prep.corpus.reader import CorpusOptions
from data_prep.corpus.tokens import TokenizerOptions
from data_prep.examples.instances import SegmentRules
from data_prep.examples.records import ExampleOptions, ShardSet
from data_prep.one_machine import PreparationConfig, prepare

SYLLABLES = ["ba", "co", "di", "fu", "ga", "hi", "jo", "ku", "la", "mi"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *SYLLABLES, *(f"##{s}" for s in SYLLABLES), "."]


def write_vocab(directory):
    """Writes a vocabulary in which each syllable is a token, and returns the path."""
    path = directory / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return str(path)


def sentence(rng):
    words = ("".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 9)))
    return " ".join(words) + "."


def write_corpus(path, documents=30, seed=0, marks=False):
    """Writes documents separated by blank lines; with `marks`, sentences of document i begin with syllable i."""
    rng = random.Random(seed)
    lines = []
    for i in range(documents):
        mark = f"{SYLLABLES[i]} " if marks else ""
        lines += [*(mark + sentence(rng) for _ in range(rng.randint(1, 12))), ""]
    path.write_text("\n".join(lines))
    return str(path)


# First characters, and second characters, of Chinese words.
FIRSTS, SECONDS = "天地人山水", "上下左右中"


def words_of_two_characters(text):
    """A word segmenter (--word_segmenter) for `write_chinese`."""
    return re.findall(f"[{FIRSTS}][{SECONDS}]|.", text)


def write_chinese(directory, documents=20):
    """Writes sentences of two-character words, and a vocabulary of the characters; returns both paths."""
    rng = random.Random(3)
    words = [a + b for a in FIRSTS for b in SECONDS]
    lines = []
    for _ in range(documents):
        lines += [*("".join(rng.choices(words, k=rng.randint(2, 5))) + "。" for _ in range(rng.randint(2, 9))), ""]
    (directory / "text.txt").write_text("\n".join(lines))
    vocab = directory / "vocab.txt"
    vocab.write_text("\n".join([*PIECES[:6], *FIRSTS, *SECONDS, "。"]) + "\n")
    return str(directory / "text.txt"), str(vocab)


def preparation_config(directory, text, output="out.tfrecord", num_shards=0, corpus=None, **options):
    """Returns the configuration for a text, in a directory that contains the vocabulary."""
    settings = {"max_seq_length": 24, "short_seq_prob": 0.1, "dupe_factor": 3, "random_seed": 7}
    rules = SegmentRules(**settings | {k: v for k, v in options.items() if k in settings})
    policy = MaskingPolicy(**{k: v for k, v in options.items() if k in MaskingPolicy.__struct_fields__})
    segmenter = options.get("word_segmenter", "")
    numbers = rules.max_seq_length, options.get("max_predictions_per_seq", 4)
    examples = ExampleOptions(*numbers, options.get("is_masked", True), policy, bool(segmenter))
    vocab = str(directory / "vocab.txt")
    paths = (str(directory / output),)
    if num_shards:
        paths = tuple(f"{paths[0]}-{i:05d}-of-{num_shards:05d}" for i in range(num_shards))
    settings = {"rules": repr(rules), "policy": repr(policy)}
    shards = ShardSet(paths, examples.features, vocabulary_hash(vocab), settings)
    tokenizer = TokenizerOptions(vocab, True, segmenter)
    return PreparationConfig(find_input_files(str(text)), corpus or CorpusOptions(), tokenizer, rules, examples, shards)


def make(directory, text, num_workers=1, work_dir="work", **options):
    """Prepares a text; returns the paths of the shards and the counts."""
    config = preparation_config(directory, text, **options)
    counts = prepare(config, str(directory / work_dir), num_workers, 400 * num_workers, keeps_tokens=True)
    return config.shards.paths, counts


def records(path):
    """Yields the serialized records of a TFRecord file."""
    data = open(path, "rb").read()  # noqa: SIM115
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        yield data[position + 12 : position + 12 + length]
        position += 16 + length


def features(record):
    """Returns a record as a dict of lists."""
    import tensorflow as tf

    entries = tf.train.Example.FromString(record).features.feature
    return {name: list(e.int64_list.value or e.float_list.value) for name, e in entries.items()}
