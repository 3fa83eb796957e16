"""The original examples in the original order (`--original_order`), with the original random draws.

As in the original code, the complete corpus is in memory, and one core does the work. Unlike the streaming mode, this
mode keeps these properties of the original code:

- Carriage returns are deleted everywhere.
- A document continues in the next file if there is no blank line at the end.
- The "random" segments of a corpus of one document come from that document.
- A "##" token at the front of the second segment belongs to the last word of the first.
"""

import collections
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.reporting import progress_bar
from bert_tf.sequences.masking import MaskingVocabulary, mask_as_original
from bert_tf.sequences.packing import join_segments, truncate_randomly
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import UNK
from data_prep.examples.instances import SegmentRules
from data_prep.examples.records import ExampleOptions, RecordEncoder, ShardSet, count_examples

# Number of records per batch.
_BATCH = 1024
_ATTEMPTS_AT_ANOTHER_DOCUMENT = 10

Document = list[list[int]]


class Example(NamedTuple):
    """A masked sequence without padding.

    Attributes:
      input_ids: ids after masking.
      segment_ids: 0 for [CLS] A [SEP], 1 for B [SEP].
      is_random_next: whether B is a random segment.
      positions: positions of the chosen tokens, in ascending order.
      labels: the original ids at these positions.
    """

    input_ids: list[int]
    segment_ids: list[int]
    is_random_next: bool
    positions: list[int]
    labels: list[int]


def write_original_examples(
    inputs: Sequence[str], tokenizer: Tokenizer, rules: SegmentRules, options: ExampleOptions, shards: ShardSet
) -> dict[str, int]:
    """Writes the original files; example i goes into file i modulo the number of files.

    Args:
      inputs: text files with one sentence per line and blank lines between documents.
      tokenizer: the tokenizer.
      rules: how tokens are combined into segments.
      options: the content of a record.
      shards: the files to write.

    Returns:
      The numbers of documents and sentences, and the counts of `records.count_examples`.

    Raises:
      InputError: if a file is missing or not UTF-8, or there is no text.
    """
    rng = random.Random(rules.random_seed)
    documents = read_documents(inputs, tokenizer)
    if not documents:
        raise InputError(f"--input_file: {first_of(inputs)}: there is no text. Add text.")
    rng.shuffle(documents)
    examples = list(make_examples(documents, tokenizer, rules, options, rng))
    rng.shuffle(examples)
    counts = collections.Counter(documents=len(documents), sentences=sum(map(len, documents)))
    encoder = RecordEncoder(options.features, max(max(tokenizer.vocab.values()) + 1, options.max_seq_length))
    for shard in range(len(shards.paths)):
        shard_examples, shard_counts = examples[shard :: len(shards.paths)], collections.Counter()
        with files.replacing(shards.staged(shard), "wb") as writer:
            for first in range(0, len(shard_examples), _BATCH):
                values = _arrays(shard_examples[first : first + _BATCH], options)
                writer.writelines(encoder.encode(values))
                shard_counts.update(count_examples(values, tokenizer.vocab.get(UNK)))
        shards.stage(shard, shards.staged(shard), shard_counts)
        counts.update(shard_counts)
    shards.publish()
    return dict(counts)


def _arrays(examples: Sequence[Example], options: ExampleOptions) -> dict[str, np.ndarray]:
    def padded(rows: Iterable[list[int]], width: int) -> np.ndarray:
        return np.array([row + [0] * (width - len(row)) for row in rows])

    length, predictions = options.max_seq_length, options.max_predictions_per_seq
    return {
        "input_ids": padded((e.input_ids for e in examples), length),
        "input_mask": padded(([1] * len(e.input_ids) for e in examples), length),
        "segment_ids": padded((e.segment_ids for e in examples), length),
        "masked_lm_positions": padded((e.positions for e in examples), predictions),
        "masked_lm_ids": padded((e.labels for e in examples), predictions),
        "masked_lm_weights": padded(([1] * len(e.labels) for e in examples), predictions),
        "next_sentence_labels": np.array([[int(e.is_random_next)] for e in examples]),
    }


def read_documents(inputs: Iterable[str], tokenizer: Tokenizer) -> list[Document]:
    """Reads documents from text files like the original code. Documents without tokens are skipped.

    Raises:
      InputError: if a file is missing, or a line is not UTF-8.
    """
    documents: list[Document] = [[]]
    for path in inputs:
        with files.open_file(files.require_file(path, "--input_file", may_be_empty=True), "rb") as reader:
            for number, line in enumerate(reader, start=1):
                line = line.replace(b"\r", b"")
                if not line:  # a final "\r" without "\n" ends the file in the original code
                    break
                try:
                    text = line.decode("utf-8").strip()
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"--input_file: {path}, line {number}: byte 0x{error.object[error.start]:02x} is not UTF-8. "
                        "Convert the file (for example with `iconv -t UTF-8`)."
                    ) from None
                if not text:
                    documents.append([])
                elif ids := tokenizer.encode(text):
                    documents[-1].append(ids)
    return [document for document in documents if document]


def make_examples(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    rules: SegmentRules,
    options: ExampleOptions,
    rng: random.Random,
) -> Iterator[Example]:
    """Yields the examples of all documents, in the original order before its last shuffle."""
    vocabulary = MaskingVocabulary.of(tokenizer.vocab, options.policy.no_special_replacements)
    with progress_bar(rules.dupe_factor * len(documents), "examples", unit="document") as bar:
        for _ in range(rules.dupe_factor):
            for index in range(len(documents)):
                for segment_a, segment_b, is_random_next in _pairs_of_document(documents, index, rules, rng):
                    truncate_randomly(segment_a, segment_b, rules.max_num_tokens, rng)
                    sequence, segment_ids = join_segments(segment_a, segment_b, vocabulary.cls_id, vocabulary.sep_id)
                    masked = mask_as_original(
                        sequence, options.max_predictions_per_seq, options.policy, vocabulary, rng
                    )
                    yield Example(masked[0], segment_ids, is_random_next, masked[1], masked[2])
                bar.update()


def _pairs_of_document(
    documents: Sequence[Document], index: int, rules: SegmentRules, rng: random.Random
) -> Iterator[tuple[list[int], list[int], bool]]:
    """Yields the segments A and B of a document before truncation, and whether B is random."""
    target = rules.max_num_tokens
    if rng.random() < rules.short_seq_prob:
        target = rng.randint(2, rules.max_num_tokens)
    document = documents[index]
    first = 0
    while first < len(document):
        end = _end_of_chunk(document, first, target)
        cut = first + (rng.randint(1, end - first - 1) if end - first > 1 else 1)
        segment_a = _joined(document[first:cut])
        is_random_next = end - first == 1 or rng.random() < 0.5
        if is_random_next:
            other = documents[_another_document(len(documents), index, rng)]
            start = rng.randint(0, len(other) - 1)
            segment_b = _joined(other[start : _end_of_chunk(other, start, target - len(segment_a))])
        else:
            segment_b = _joined(document[cut:end])
        yield segment_a, segment_b, is_random_next
        # If B is random, the sentences after A begin the next chunk.
        first = cut if is_random_next else end


def _end_of_chunk(document: Document, first: int, target: int) -> int:
    """Returns the end of the chunk that begins with sentence `first`: after the sentence that reaches `target`."""
    length = 0
    for end, sentence in enumerate(document[first:], start=first + 1):
        length += len(sentence)
        if length >= target:
            return end
    return len(document)


def _another_document(count: int, index: int, rng: random.Random) -> int:
    for _ in range(_ATTEMPTS_AT_ANOTHER_DOCUMENT):
        other = rng.randint(0, count - 1)
        if other != index:
            break
    return other


def _joined(sentences: Iterable[list[int]]) -> list[int]:
    return [token for sentence in sentences for token in sentence]
