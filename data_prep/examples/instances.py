"""Documents to A/B segments with the next-sentence label, by the release's rules (paper, section 3.1 and appendix A.2).

Which segments a document gives is decided for whole stretches of sentences at once. For every sentence it is worked
out where a chunk that began there would end, where it would be cut into A and B, whether B would be a random segment,
and so where the next chunk would begin; then the chain of chunks is followed. Each decision is drawn for (seed,
duplicate, document, sentence), so it does not depend on how the work was divided.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.sequences.packing import check_max_seq_length, truncated_lengths
from bert_tf.sequences.random_streams import below, coin_flips, draw, make_keys, uniform
from data_prep.corpus.token_store import TokenStore

# What is drawn for: first for a document (its target length), then for an example.
_OF_DOCUMENT, _OF_EXAMPLE = 0, 1
_IS_SHORT, _SHORT_TARGET = 0, 1
_CUT, _IS_RANDOM, _RANDOM_DOCUMENT, _RANDOM_SENTENCE, _FRONT_A, _FRONT_B = range(6)

# Memory is bounded by how many sentences, and how many random segments, are looked at together.
_SENTENCES_AT_A_TIME = 1 << 14
_LOOK_UPS_AT_A_TIME = 1 << 12
# A random segment nearly always has enough tokens in so many sentences; more are looked at only if it hasn't.
_FEW_SENTENCES = 12

# Where an example's tokens lie in the store; `keys` [n], kept beside it, give the examples' order.
EXAMPLE = np.dtype(
    [("start_a", "<i8"), ("start_b", "<i8"), ("length_a", "<u2"), ("length_b", "<u2"), ("is_random_next", "u1")]
)


@dataclasses.dataclass(frozen=True)
class SegmentRules:
    """What decides the segments.

    Attributes:
      max_seq_length: longest sequence, with [CLS] and two [SEP].
      short_seq_prob: share of the documents, in each duplicate, whose sequences aim at a shorter length.
      dupe_factor: how often each document is gone through.
      random_seed: of all draws.

    Raises:
      InputError: if a sequence has no room for two segments, or a number is out of range.
    """

    max_seq_length: int
    short_seq_prob: float
    dupe_factor: int
    random_seed: int

    def __post_init__(self) -> None:
        check_max_seq_length(self.max_seq_length, smallest=5)
        longest = np.iinfo(EXAMPLE["length_a"]).max
        if self.max_seq_length > longest:
            raise InputError(f"--max_seq_length is {self.max_seq_length}, but {longest} at the most is expected.")
        if not 0 <= self.short_seq_prob <= 1:
            raise InputError(f"--short_seq_prob is {self.short_seq_prob}, but a share from 0 to 1 is expected.")
        if self.dupe_factor < 1:
            raise InputError(f"--dupe_factor is {self.dupe_factor}, but at least 1 is needed.")

    @property
    def max_num_tokens(self) -> int:
        """Room for the tokens of both segments."""
        return self.max_seq_length - 3


class SentenceWindow(NamedTuple):
    """Sentences [n] that lie one after the other, and some behind them.

    Attributes:
      offsets: token offsets of the sentences, of `max_num_tokens` more (or those up to the end of the last
        document), and of the end.
      documents: [n] the number of each sentence's document.
      places: [n] each sentence's index in its document.
      document_ends: [n] index into `offsets` of the end of each sentence's document.
    """

    offsets: np.ndarray
    documents: np.ndarray
    places: np.ndarray
    document_ends: np.ndarray


class Chunks(NamedTuple):
    """Stretches of sentences [n] that became examples; A is a chunk's front, and B its rest or a random segment.

    Attributes:
      keys: [n] what everything about an example is drawn from.
      documents: [n] document numbers.
      targets: [n] how many tokens were aimed at.
      first: [n] index into the window's offsets of the first sentence.
      cuts: [n] the same of A's end.
      ends: [n] the same of the chunk's end.
      is_random_next: [n] whether B is to come from another document.
    """

    keys: np.ndarray
    documents: np.ndarray
    targets: np.ndarray
    first: np.ndarray
    cuts: np.ndarray
    ends: np.ndarray
    is_random_next: np.ndarray


def choose_chunks(window: SentenceWindow, duplicate: int, first: int, rules: SegmentRules) -> tuple[Chunks, int]:
    """Cuts a window's sentences into chunks and these into segments.

    A chunk is filled with sentences until it has the document's target length; A gets a random number of them. If B
    is to be random, the sentences behind A start the next chunk.

    Args:
      window: the sentences.
      duplicate: which time the documents are gone through.
      first: index of the sentence that the first chunk begins with.
      rules: the lengths, and the seed.

    Returns:
      The chunks, and the index of the first sentence of the next window's first chunk, counted from this window's
      start.
    """
    here = np.arange(len(window.documents))
    document_keys = make_keys(rules.random_seed, _OF_DOCUMENT, duplicate, window.documents)
    is_short = uniform(draw(document_keys, _IS_SHORT)) < rules.short_seq_prob
    short_targets = 2 + below(draw(document_keys, _SHORT_TARGET), rules.max_num_tokens - 1)
    targets = np.where(is_short, short_targets, rules.max_num_tokens)

    keys = make_keys(rules.random_seed, _OF_EXAMPLE, duplicate, window.documents, window.places)
    ends = np.searchsorted(window.offsets, window.offsets[here] + targets)
    ends = np.minimum(ends, window.document_ends)
    cuts = here + 1 + below(draw(keys, _CUT), ends - here - 1)
    is_random_next = (ends - here == 1) | (uniform(draw(keys, _IS_RANDOM)) < 0.5)
    following = np.where(is_random_next, cuts, ends).tolist()

    chosen = []
    while first < len(following):
        chosen.append(first)
        first = following[first]
    chunks = Chunks(keys, window.documents, targets, here, cuts, ends, is_random_next)
    return Chunks(*(column[chosen] for column in chunks)), first


def chunks_of_document(offsets: np.ndarray, document: int, rules: SegmentRules) -> Chunks:
    """The chunks of one document, all duplicates together.

    Args:
      offsets: token offsets [sentences + 1] of its sentences.
      document: its number in the corpus.
      rules: the lengths, and the seed.
    """
    count = len(offsets) - 1
    window = SentenceWindow(offsets, np.full(count, document), np.arange(count), np.full(count, count))
    chosen = [choose_chunks(window, duplicate, 0, rules)[0] for duplicate in range(rules.dupe_factor)]
    return Chunks(*map(np.concatenate, zip(*chosen, strict=True)))


def random_documents(keys: np.ndarray, own: np.ndarray, count: int) -> np.ndarray:
    """For each example [n], one of the `count` documents, but never its own."""
    others = below(draw(keys, _RANDOM_DOCUMENT), count - 1)
    return others + (others >= own)


def random_sentences(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """For each example [n], where in a document of `counts` [n] sentences its random segment begins."""
    return below(draw(keys, _RANDOM_SENTENCE), counts)


def wanted_tokens(chunks: Chunks, offsets: np.ndarray) -> np.ndarray:
    """How many tokens [n] a random segment is to have at least, if its document has them."""
    return chunks.targets - (offsets[chunks.cuts] - offsets[chunks.first])


def segment_ends(windows: np.ndarray, sentences: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where segments end that begin at the first of each row's sentences.

    Args:
      windows: token offsets [n, W + 1] of sentences.
      sentences: [n] how many of them there are; what stands behind is ignored.
      wanted: [n] tokens that are enough.

    Returns:
      Token offsets [n]: as many whole sentences as it takes, at least one.
    """
    place = np.arange(windows.shape[1])
    is_enough = (windows - windows[:, :1] >= wanted[:, None]) | (place >= sentences[:, None])
    is_enough[:, 0] = False
    return windows[np.arange(len(windows)), np.argmax(is_enough, axis=1)]


def truncate(
    keys: np.ndarray,
    a: tuple[np.ndarray, np.ndarray],
    b: tuple[np.ndarray, np.ndarray],
    is_random_next: np.ndarray,
    rules: SegmentRules,
) -> np.ndarray:
    """Shortens segments until both fit: the longer one loses a token, at its front or its end as a coin falls.

    Args:
      keys: [n] of the examples.
      a: starts [n] and ends [n] of the first segments' tokens.
      b: the same of the second.
      is_random_next: [n] the label.
      rules: the lengths.

    Returns:
      Examples [n] of type `EXAMPLE`.
    """
    examples = np.empty(len(keys), EXAMPLE)
    lengths = a[1] - a[0], b[1] - b[0]
    kept = truncated_lengths(*lengths, rules.max_num_tokens)
    for name, number, (start, _), length, kept_length in zip(
        "ab", (_FRONT_A, _FRONT_B), (a, b), lengths, kept, strict=True
    ):
        examples[f"start_{name}"] = start + coin_flips(draw(keys, number), length - kept_length)
        examples[f"length_{name}"] = kept_length
    examples["is_random_next"] = is_random_next
    return examples


class Plan(NamedTuple):
    """The examples of a window of sentences.

    Attributes:
      keys: [n] of the examples.
      examples: [n] of type `EXAMPLE`.
      sentences: how many sentences were gone through.
      long_sentences: how many of them have more tokens than a sequence has room for.
    """

    keys: np.ndarray
    examples: np.ndarray
    sentences: int
    long_sentences: int


def plan_part(store: TokenStore, part: int, rules: SegmentRules) -> Iterator[Plan]:
    """The examples of one part's documents, window by window, in no particular order."""
    first = [0] * rules.dupe_factor
    for window in _windows(store, part, rules.max_num_tokens):
        count = len(window.documents)
        chosen = []
        for duplicate in range(rules.dupe_factor):
            chunks, after = choose_chunks(window, duplicate, first[duplicate], rules)
            first[duplicate] = after - count
            chosen.append(chunks)
        chunks = Chunks(*map(np.concatenate, zip(*chosen, strict=True)))
        long_sentences = np.count_nonzero(np.diff(window.offsets[: count + 1]) > rules.max_num_tokens)
        yield Plan(chunks.keys, _place_tokens(store, window, chunks, rules), count, int(long_sentences))


def _windows(store: TokenStore, part: int, lookahead: int) -> Iterator[SentenceWindow]:
    document_offsets = store.document_offsets(part)
    sentences = store.parts[part].sentences
    for begin in range(0, sentences, _SENTENCES_AT_A_TIME):
        end = min(begin + _SENTENCES_AT_A_TIME, sentences)
        numbers = np.arange(begin, end)
        documents = np.searchsorted(document_offsets, numbers, side="right") - 1
        yield SentenceWindow(
            offsets=store.sentence_offsets(part, begin, min(end + lookahead, sentences) - begin),
            documents=store.first_document(part) + documents,
            places=numbers - document_offsets[documents],
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
    """Where segments of at the most `most` sentences begin and end; see `segment_ends`."""
    windows = store.offset_windows(first, most)
    return windows[:, 0], segment_ends(windows, np.minimum(sentences, most), wanted)
