"""Splits documents into pairs of segments A and B with a next-sentence label (paper, section 3.1 and appendix A.2).

The rules are the original ones. (`original_order` applies the same rules with the original random draws.) This module
applies the rules to many sentences at once. For every sentence, the functions assume that a chunk begins there. They
compute the end of this chunk, its division into A and B, whether B is random, and the start of the next chunk. Then
they follow the chain of chunks from the first sentence. Every random decision is a function of (seed, duplicate,
document, sentence), so the result does not depend on how the work is divided.
"""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

from bert_tf.runtime.settings import Settings, about
from bert_tf.sequences.packing import truncate_randomly_batch
from bert_tf.sequences.random_streams import below, draw, make_keys, uniform
from data_prep.corpus.tokens import TokenStore

# The number after the seed in a key: 0 for draws about a document (its target length), 1 for draws about an example.
_OF_DOCUMENT, _OF_EXAMPLE = 0, 1
_IS_SHORT, _SHORT_TARGET = 0, 1
_CUT, _IS_RANDOM, _RANDOM_DOCUMENT, _RANDOM_SENTENCE, _FRONT_A, _FRONT_B = range(6)

# Number of sentences, and number of random segments, to process together. They limit the memory.
_SENTENCES_AT_A_TIME = 1 << 14
_LOOK_UPS_AT_A_TIME = 1 << 12
# A random segment almost always has enough tokens in this many sentences. Otherwise more sentences are read.
_FEW_SENTENCES = 12

# A planned example: the positions of its tokens in the store, and its label. Its key is stored in a separate array.
EXAMPLE = np.dtype(
    [("start_a", "<i8"), ("start_b", "<i8"), ("length_a", "<u2"), ("length_b", "<u2"), ("is_random_next", "u1")]
)


_LONGEST = int(np.iinfo(EXAMPLE["length_a"]).max)


class SegmentRules(Settings, frozen=True):
    """The rules for segments.

    Attributes:
      max_seq_length: longest sequence in tokens, including [CLS] and two [SEP].
      short_seq_prob: fraction of the documents with a shorter target length, drawn again for each duplicate.
      dupe_factor: number of times each document is used, each time with different random choices.
      random_seed: seed of all draws.

    Raises:
      InputError: if a sequence has no room for two segments, or a number is out of bounds.
    """

    max_seq_length: Annotated[int, about("Length of the sequences in tokens.", ge=5, le=_LONGEST)] = 128
    short_seq_prob: Annotated[float, about("Fraction of documents with shorter sequences.", ge=0, le=1)] = 0.1
    dupe_factor: Annotated[int, about(ge=1)] = 10
    random_seed: Annotated[int, about("Seed of all random choices.")] = 12345

    @property
    def max_num_tokens(self) -> int:
        """The largest total number of tokens in both segments."""
        return self.max_seq_length - 3


class SentenceWindow(NamedTuple):
    """n sentences in the order of the corpus.

    Attributes:
      offsets: [n + M + 1], token offsets of the n sentences, of M <= `max_num_tokens` following sentences, and of the
        end.
      documents: [n], the document index of each sentence.
      sentence_numbers: [n], the index of each sentence in its document.
      document_ends: [n], the index in `offsets` of the end of each sentence's document.
    """

    offsets: np.ndarray
    documents: np.ndarray
    sentence_numbers: np.ndarray
    document_ends: np.ndarray


class Chunks(NamedTuple):
    """Consecutive sentences that become examples. A is the front of a chunk; B is the rest or a random segment.

    Attributes:
      keys: [n], keys for all random draws of an example.
      documents: [n], document indices.
      targets: [n], target lengths in tokens.
      first: [n], index of the first sentence in the window's offsets.
      cuts: [n], index of the end of A.
      ends: [n], index of the end of the chunk.
      is_random_next: [n], whether B comes from another document.
    """

    keys: np.ndarray
    documents: np.ndarray
    targets: np.ndarray
    first: np.ndarray
    cuts: np.ndarray
    ends: np.ndarray
    is_random_next: np.ndarray


def choose_chunks(window: SentenceWindow, duplicate: int, first: int, rules: SegmentRules) -> tuple[Chunks, int]:
    """Divides the sentences of a window into chunks.

    Sentences are added to a chunk until it has the document's target length. Segment A gets a random number of the
    sentences. If B is random, the sentences after A begin the next chunk.

    Args:
      window: the sentences.
      duplicate: the index of the pass through the documents.
      first: index of the first sentence of the first chunk.
      rules: the rules.

    Returns:
      The chunks, and the index of the first sentence of the next window's first chunk, relative to the start of this
      window.
    """
    here = np.arange(len(window.documents))
    document_keys = make_keys(rules.random_seed, _OF_DOCUMENT, duplicate, window.documents)
    is_short = uniform(draw(document_keys, _IS_SHORT)) < rules.short_seq_prob
    short_targets = 2 + below(draw(document_keys, _SHORT_TARGET), rules.max_num_tokens - 1)
    targets = np.where(is_short, short_targets, rules.max_num_tokens)

    keys = make_keys(rules.random_seed, _OF_EXAMPLE, duplicate, window.documents, window.sentence_numbers)
    ends = np.searchsorted(window.offsets, window.offsets[here] + targets)
    ends = np.minimum(ends, window.document_ends)
    cuts = here + 1 + below(draw(keys, _CUT), ends - here - 1)
    is_random_next = (ends - here == 1) | (uniform(draw(keys, _IS_RANDOM)) < 0.5)
    following = np.where(is_random_next, cuts, ends).tolist()

    chosen = []
    while first < len(following):
        chosen.append(first)
        first = following[first]
    chunks = Chunks(keys, window.documents, targets, first=here, cuts=cuts, ends=ends, is_random_next=is_random_next)
    return Chunks(*(column[chosen] for column in chunks)), first


def chunks_of_document(offsets: np.ndarray, document: int, rules: SegmentRules) -> Chunks:
    """Returns the chunks of one document, for all duplicates together.

    Args:
      offsets: [sentences + 1], token offsets of the document's sentences.
      document: the index of the document in the corpus.
      rules: the rules.
    """
    count = len(offsets) - 1
    window = SentenceWindow(offsets, np.full(count, document), np.arange(count), np.full(count, count))
    return _choose_all_chunks(window, [0] * rules.dupe_factor, rules)


def _choose_all_chunks(window: SentenceWindow, first: list[int], rules: SegmentRules) -> Chunks:
    """Returns the chunks of all duplicates. Advances `first` [duplicates] to the next window."""
    chosen = []
    for duplicate in range(rules.dupe_factor):
        chunks, after = choose_chunks(window, duplicate, first[duplicate], rules)
        first[duplicate] = after - len(window.documents)
        chosen.append(chunks)
    return Chunks(*map(np.concatenate, zip(*chosen, strict=True)))


def random_documents(keys: np.ndarray, documents: np.ndarray, count: int) -> np.ndarray:
    """Returns for each example [n] a random document among `count`, different from `documents` [n]."""
    others = below(draw(keys, _RANDOM_DOCUMENT), count - 1)
    return others + (others >= documents)


def random_sentences(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns for each example [n] the first sentence of the random segment, a random number below `counts` [n]."""
    return below(draw(keys, _RANDOM_SENTENCE), counts)


def wanted_tokens(chunks: Chunks, offsets: np.ndarray) -> np.ndarray:
    """Returns the number of tokens [n] that a random segment needs; its last sentence may exceed the number."""
    return chunks.targets - (offsets[chunks.cuts] - offsets[chunks.first])


def segment_ends(windows: np.ndarray, sentences: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the ends of segments that begin with the first sentence of each row.

    Args:
      windows: [n, W + 1], token offsets of sentences.
      sentences: [n], number of sentences in each row; offsets after the last sentence are ignored.
      wanted: [n], required numbers of tokens.

    Returns:
      Token offsets [n] after the smallest number of complete sentences, at least one, that have enough tokens.
    """
    columns = np.arange(windows.shape[1])
    is_enough = (windows - windows[:, :1] >= wanted[:, None]) | (columns >= sentences[:, None])
    is_enough[:, 0] = False
    return windows[np.arange(len(windows)), np.argmax(is_enough, axis=1)]


def truncate(
    keys: np.ndarray,
    a: tuple[np.ndarray, np.ndarray],
    b: tuple[np.ndarray, np.ndarray],
    is_random_next: np.ndarray,
    rules: SegmentRules,
) -> np.ndarray:
    """Shortens pairs of segments until both fit. See `packing.truncate_randomly_batch`.

    Args:
      keys: [n], keys of the examples.
      a: starts [n] and ends [n] of the first segments' tokens.
      b: starts [n] and ends [n] of the second segments' tokens.
      is_random_next: [n], the labels.
      rules: the rules.

    Returns:
      Examples [n] of type `EXAMPLE`.
    """
    examples = np.empty(len(keys), EXAMPLE)
    lengths = a[1] - a[0], b[1] - b[0]
    cut = truncate_randomly_batch(lengths, rules.max_num_tokens, (draw(keys, _FRONT_A), draw(keys, _FRONT_B)))
    for name, (start, _), (skipped, length) in zip("ab", (a, b), cut, strict=True):
        examples[f"start_{name}"] = start + skipped
        examples[f"length_{name}"] = length
    examples["is_random_next"] = is_random_next
    return examples


class PlannedExamples(NamedTuple):
    """The examples of a window of sentences.

    Attributes:
      keys: [n], keys of the examples.
      examples: [n] of type `EXAMPLE`.
      sentences: number of sentences in the window.
      long_sentences: number of sentences that do not fit into a sequence.
    """

    keys: np.ndarray
    examples: np.ndarray
    sentences: int
    long_sentences: int


def plan_examples(store: TokenStore, part_index: int, rules: SegmentRules) -> Iterator[PlannedExamples]:
    """Plans the examples of the documents in one part of the store, window by window, in arbitrary order."""
    first = [0] * rules.dupe_factor
    for window in _windows(store, part_index, rules.max_num_tokens):
        count = len(window.documents)
        chunks = _choose_all_chunks(window, first, rules)
        long_sentences = np.count_nonzero(np.diff(window.offsets[: count + 1]) > rules.max_num_tokens)
        yield PlannedExamples(chunks.keys, _place_tokens(store, window, chunks, rules), count, int(long_sentences))


def _windows(store: TokenStore, part_index: int, lookahead: int) -> Iterator[SentenceWindow]:
    document_offsets = store.document_offsets(part_index)
    sentences = store.parts[part_index].sentences
    for begin in range(0, sentences, _SENTENCES_AT_A_TIME):
        end = min(begin + _SENTENCES_AT_A_TIME, sentences)
        numbers = np.arange(begin, end)
        documents = np.searchsorted(document_offsets, numbers, side="right") - 1
        yield SentenceWindow(
            offsets=store.sentence_offsets(part_index, begin, min(end + lookahead, sentences) - begin),
            documents=store.first_document(part_index) + documents,
            sentence_numbers=numbers - document_offsets[documents],
            document_ends=document_offsets[documents + 1] - begin,
        )


def _place_tokens(store: TokenStore, window: SentenceWindow, chunks: Chunks, rules: SegmentRules) -> np.ndarray:
    offsets = window.offsets
    cuts = offsets[chunks.cuts]
    start_b, end_b = cuts.copy(), offsets[chunks.ends]
    wanted = wanted_tokens(chunks, offsets)
    random_rows = np.flatnonzero(chunks.is_random_next)
    for i in range(0, len(random_rows), _LOOK_UPS_AT_A_TIME):
        rows = random_rows[i : i + _LOOK_UPS_AT_A_TIME]
        keys = chunks.keys[rows]
        first, end = store.sentence_ranges(random_documents(keys, chunks.documents[rows], store.documents))
        first += random_sentences(keys, end - first)
        start_b[rows], end_b[rows] = _random_segments(store, first, end - first, wanted[rows], _FEW_SENTENCES)
        is_cut = (end_b[rows] - start_b[rows] < wanted[rows]) & (end - first > _FEW_SENTENCES)
        rest = rows[is_cut]
        _, end_b[rest] = _random_segments(
            store, first[is_cut], (end - first)[is_cut], wanted[rest], rules.max_num_tokens
        )
    return truncate(chunks.keys, (offsets[chunks.first], cuts), (start_b, end_b), chunks.is_random_next, rules)


def _random_segments(
    store: TokenStore, first: np.ndarray, sentences: np.ndarray, wanted: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and ends, in tokens, of segments of at most `most` sentences. See `segment_ends`."""
    windows = store.offset_windows(first, most)
    return windows[:, 0], segment_ends(windows, np.minimum(sentences, most), wanted)
