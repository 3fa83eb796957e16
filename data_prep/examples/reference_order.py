"""The release's examples exactly: its draws from one generator, in its order (`--reference_order`).

As released, the whole corpus is held in memory, and one core does the work. Kept here, and mended in the streaming
mode: carriage returns are deleted wherever they stand; a file without a closing blank line runs into the next one; a
corpus of one document gives "random" segments of that document; a "##" piece that truncation left at the front of the
second segment belongs to the last word of the first.
"""

import collections
import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.reporting import progress_bar
from bert_tf.sequences.masking import MaskingVocabulary, mask_as_released
from bert_tf.sequences.packing import join_segments, pad, truncate_randomly
from bert_tf.tokenization import FullTokenizer
from data_prep.examples.batches import ExampleOptions, count_examples
from data_prep.examples.instances import SegmentRules
from data_prep.examples.outputs import OutputSet
from data_prep.examples.records import RecordEncoder

# Records that are written at a time.
_BATCH = 1024
_ATTEMPTS_AT_ANOTHER_DOCUMENT = 10

Document = list[list[int]]


class Example(NamedTuple):
    """A masked sequence, unpadded.

    Attributes:
      input_ids: ids, some of them replaced.
      segment_ids: 0 for [CLS] A [SEP], 1 for B [SEP].
      is_random_next: whether B is a random segment.
      positions: of the chosen tokens, ascending.
      labels: the ids that stood there.
    """

    input_ids: list[int]
    segment_ids: list[int]
    is_random_next: bool
    positions: list[int]
    labels: list[int]


def write_reference_examples(
    inputs: Sequence[str],
    tokenizer: FullTokenizer,
    rules: SegmentRules,
    options: ExampleOptions,
    outputs: OutputSet,
) -> dict[str, int]:
    """Makes the release's files; example i goes into file i modulo their number.

    Args:
      inputs: text files, a sentence a line, with blank lines between documents.
      tokenizer: what makes the tokens.
      rules: lengths, duplicates, seed.
      options: what a record holds.
      outputs: the files.

    Returns:
      Counts: documents, sentences, and those of `examples.count_examples`.

    Raises:
      InputError: if a file is missing or not UTF-8, or there is no text.
    """
    rng = random.Random(rules.random_seed)
    documents = read_documents(inputs, tokenizer)
    if not documents:
        raise InputError(f"--input_file: {', '.join(inputs)}: there is no text.")
    rng.shuffle(documents)
    examples = list(make_examples(documents, tokenizer, rules, options, rng))
    rng.shuffle(examples)
    counts = collections.Counter(documents=len(documents), sentences=sum(map(len, documents)))
    encoder = RecordEncoder(options.features, max(max(tokenizer.vocab.values()) + 1, options.max_seq_length))
    with contextlib.ExitStack() as stack:
        for shard, path in enumerate(outputs.paths):
            writer = stack.enter_context(files.replacing(path, "wb"))
            own, shard_counts = examples[shard :: len(outputs.paths)], collections.Counter()
            for first in range(0, len(own), _BATCH):
                values = _arrays(own[first : first + _BATCH], options)
                writer.writelines(encoder.encode(values))
                shard_counts.update(count_examples(values))
            outputs.sidecar(shard, writer.tell(), shard_counts).write(path)
            counts.update(shard_counts)
    return dict(counts)


def _arrays(examples: Sequence[Example], options: ExampleOptions) -> dict[str, np.ndarray]:
    length, predictions = options.max_seq_length, options.max_predictions_per_seq
    packed = [pad(example.input_ids, example.segment_ids, length) for example in examples]
    filling = [[0] * (predictions - len(example.positions)) for example in examples]
    columns = {
        "input_ids": [sequence.input_ids for sequence in packed],
        "input_mask": [sequence.input_mask for sequence in packed],
        "segment_ids": [sequence.segment_ids for sequence in packed],
        "masked_lm_positions": [e.positions + f for e, f in zip(examples, filling, strict=True)],
        "masked_lm_ids": [e.labels + f for e, f in zip(examples, filling, strict=True)],
        "masked_lm_weights": [[1] * len(e.positions) + f for e, f in zip(examples, filling, strict=True)],
        "next_sentence_labels": [[int(example.is_random_next)] for example in examples],
    }
    return {name: np.array(column) for name, column in columns.items()}


def read_documents(inputs: Iterable[str], tokenizer: FullTokenizer) -> list[Document]:
    """The documents of text files, as the release reads them; those without tokens are left out.

    Raises:
      InputError: if a file is missing, or a line is not UTF-8.
    """
    documents: list[Document] = [[]]
    for path in inputs:
        with files.open_file(files.require_file(path, "--input_file", may_be_empty=True), "rb") as reader:
            for number, line in enumerate(reader, start=1):
                line = line.replace(b"\r", b"")
                if not line:  # the file ends with "\r" and no "\n": to the release, its end, and no blank line
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
    tokenizer: FullTokenizer,
    rules: SegmentRules,
    options: ExampleOptions,
    rng: random.Random,
) -> Iterator[Example]:
    """The examples of all documents, in the release's order before its last shuffle."""
    vocabulary = MaskingVocabulary.of(tokenizer.vocab, options.policy.ordinary_replacements)
    with progress_bar(rules.dupe_factor * len(documents), "examples", unit="document") as bar:
        for _ in range(rules.dupe_factor):
            for index in range(len(documents)):
                for segment_a, segment_b, is_random_next in _pairs_of_document(documents, index, rules, rng):
                    truncate_randomly(segment_a, segment_b, rules.max_num_tokens, rng)
                    sequence, segment_ids = join_segments(segment_a, segment_b, vocabulary.cls_id, vocabulary.sep_id)
                    masked = mask_as_released(
                        sequence, options.max_predictions_per_seq, options.policy, vocabulary, rng
                    )
                    yield Example(masked[0], segment_ids, is_random_next, masked[1], masked[2])
                bar.update()


def _pairs_of_document(
    documents: Sequence[Document], index: int, rules: SegmentRules, rng: random.Random
) -> Iterator[tuple[list[int], list[int], bool]]:
    """A document's segments A and B before truncation, and whether B is a random one."""
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
        # What B left unused begins the next chunk.
        first = cut if is_random_next else end


def _end_of_chunk(document: Document, first: int, target: int) -> int:
    """Where as many sentences end as it takes to have `target` tokens: at least one, at most to the document's end."""
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
