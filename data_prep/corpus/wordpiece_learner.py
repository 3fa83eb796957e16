"""Learns a WordPiece vocabulary of a given size from word counts, with the learner of tensorflow-text.

The learner keeps a substring if it occurs often enough at the start of a word or of a token. Occurrences at the start
of a longer token do not count. The learner takes a frequency threshold instead of a size. Therefore several thresholds
are tried until the vocabulary is slightly too large, and then the rarest tokens are removed.
"""

import collections
import functools
import importlib.util
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.text.characters import clean, clean_only
from bert_tf.text.vocabulary import CONTINUATION

# In characters. Longer strings are skipped, because most are not words and the learner visits every substring.
LONGEST_WORD = 50
_ITERATIONS = 4
# The alphabet has at least this many characters, and enough to cover this fraction of the text.
_FEWEST_CHARACTERS = 1000
_COVERAGE = 0.9995
# A vocabulary may exceed the requested size by this fraction before the rarest tokens are removed.
_SURPLUS = 0.02


def learn_vocabulary(
    counts: Mapping[str, int], vocab_size: int, first: Sequence[str], max_alphabet: int = 0
) -> list[str]:
    """Learns a vocabulary.

    Args:
      counts: the number of occurrences of each word.
      vocab_size: the requested number of tokens.
      first: the first tokens, such as the special tokens.
      max_alphabet: largest number of distinct characters. Words that contain a character outside the alphabet are
        skipped. By default (0), it is 1000, or more if needed to cover 99.95% of the text.

    Returns:
      The tokens: `first`, the sorted alphabet, and the others by descending frequency. If the words contain too few
      substrings, there are fewer than `vocab_size` tokens. CJK characters have no token with `##`, because each is a
      word.

    Raises:
      InputError: if there are no words, or the alphabet alone is larger than `vocab_size`.
    """
    learner = _learner()
    # The learner's result depends on the order of words with equal counts, so the words are sorted.
    words = learner.get_input_words(sorted(counts.items()), set(first), LONGEST_WORD)
    if not words:
        raise InputError("--input_file: the text has no words. Add text.")
    characters: collections.Counter[str] = collections.Counter()
    for word, count in words:
        for char in word:
            characters[char] += count
    alphabet = learner.get_allowed_chars(words, max_alphabet or _alphabet_size(characters))
    if len(alphabet) < len(characters):
        covered = sum(characters[char] for char in alphabet) / characters.total()
        say(
            f"Alphabet: {len(alphabet)} of {len(characters)} characters, which cover {covered:.2%} of the text. Words "
            "with other characters are skipped. Raise --max_alphabet to include more."
        )
    words = learner.filter_input_words(words, alphabet, -1)
    useless = {f"{CONTINUATION}{char}" for char in alphabet if clean(char) != clean_only(char)}
    fixed = {*first, *alphabet, *(f"{CONTINUATION}{char}" for char in alphabet)} - useless
    if vocab_size < len(fixed):
        raise InputError(
            f"--vocab_size is {vocab_size}, but the special tokens ({len(first)}) and the alphabet with and without "
            f"## ({len(fixed) - len(first)}) are {len(fixed)} tokens. Raise --vocab_size or lower --max_alphabet."
        )
    parameters = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=_ITERATIONS,
        max_input_tokens=-1,
        max_token_length=LONGEST_WORD,
        max_unique_chars=len(alphabet),
        vocab_size=vocab_size,
        slack_ratio=0.0,
        include_joiner_token=True,
        joiner=CONTINUATION,
        reserved_tokens=list(first),
    )
    vocabulary = _smallest_sufficient(
        lambda threshold: [x for x in learner.learn_with_thresh(words, threshold, parameters) if x not in useless],
        vocab_size,
        max(1, sum(counts.values()) // (10 * vocab_size)),
    )
    return _cut(vocabulary, vocab_size, fixed)


@functools.cache
def _learner() -> ModuleType:
    """Returns tensorflow-text's module without importing its package, which would import TensorFlow."""
    package = pathlib.Path(importlib.util.find_spec("tensorflow_text").origin).parent
    path = package / "tools" / "wordpiece_vocab" / "wordpiece_tokenizer_learner_lib.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _alphabet_size(characters: collections.Counter[str]) -> int:
    """Returns how many of the most frequent characters are needed to cover `_COVERAGE` of the text."""
    covered = np.cumsum(sorted(characters.values(), reverse=True))
    return max(_FEWEST_CHARACTERS, int(np.searchsorted(covered, _COVERAGE * covered[-1])) + 1)


def _smallest_sufficient(learn: Callable[[int], list[str]], vocab_size: int, threshold: int) -> list[str]:
    """Returns the vocabulary for about the highest threshold that yields enough tokens; for threshold 1 if none does.

    Args:
      learn: returns the vocabulary for a threshold.
      vocab_size: the requested number of tokens.
      threshold: the first threshold to try.
    """
    enough = too_few = None  # thresholds and sizes above and below the requested size
    while True:
        vocabulary = learn(threshold)
        say(f"Tokens that occur at least {threshold} times: {len(vocabulary)}")
        if len(vocabulary) < vocab_size:
            if threshold == 1:
                return vocabulary
            too_few = threshold, len(vocabulary)
        else:
            enough, best = (threshold, len(vocabulary)), vocabulary
            if len(vocabulary) <= vocab_size * (1 + _SURPLUS):
                return best
        if enough is None:
            threshold = max(1, threshold // 2)
        elif too_few is None:
            threshold *= 2
        elif too_few[0] - enough[0] == 1:
            return best
        else:
            threshold = _between(enough, too_few, vocab_size * (1 + _SURPLUS / 2))


def _between(enough: tuple[int, int], too_few: tuple[int, int], wanted: float) -> int:
    """Estimates the threshold for `wanted` tokens, assuming that the size is a power function of the threshold."""
    (low, most), (high, fewest) = enough, too_few
    share = math.log(most / wanted) / math.log(most / fewest)
    guess = round(low * (high / low) ** min(max(share, 0.1), 0.9))
    return min(max(guess, low + 1), high - 1)


def _cut(vocabulary: Sequence[str], vocab_size: int, fixed: set[str]) -> list[str]:
    """Removes the last tokens that are not in `fixed`."""
    room = vocab_size - len(fixed)
    tokens = []
    for token in vocabulary:
        if token in fixed or room > 0:
            tokens.append(token)
            room -= token not in fixed
    return tokens
