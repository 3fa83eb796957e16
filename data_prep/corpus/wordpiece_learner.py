"""Word counts to a WordPiece vocabulary of a given size, by tensorflow-text's learner.

The learner keeps each substring that occurs often enough where a word or a piece begins, and not only as the front of
a longer one. It takes a threshold, not a size; so thresholds are tried until the vocabulary is a little too large, and
its rarest pieces are left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say

# Longer words are hardly ever words, and the learner looks at every substring.
LONGEST_WORD = 50
_ITERATIONS = 4
# A vocabulary that is larger than asked by this share at the most is cut to size.
_SURPLUS = 0.02


def learn_vocabulary(
    counts: Mapping[str, int], vocab_size: int, first: Sequence[str], max_alphabet: int = 1000
) -> list[str]:
    """Learns a vocabulary.

    Args:
      counts: how often each word occurs.
      vocab_size: how many pieces are wanted.
      first: pieces that stand first, such as the special tokens.
      max_alphabet: how many characters; words with rarer ones are left out.

    Returns:
      The pieces: `first`, then the alphabet in its order, then everything else, the most frequent first. Fewer than
      `vocab_size` if all that can be learned is less.

    Raises:
      InputError: if there are no words, or the alphabet alone is larger than `vocab_size`.
    """
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    # The learner goes by the order of the words where counts are equal, so that is fixed first.
    words = learner.get_input_words(sorted(counts.items()), set(first), LONGEST_WORD)
    alphabet = learner.get_allowed_chars(words, max_alphabet)
    words = learner.filter_input_words(words, alphabet, -1)
    if not words:
        raise InputError("--input_file: there are no words in the text.")
    fixed = {*first, *alphabet, *(f"##{char}" for char in alphabet)}
    if vocab_size < len(fixed):
        raise InputError(
            f"--vocab_size is {vocab_size}, but the special tokens ({len(first)}) and the alphabet, with and without "
            f"## ({len(fixed) - len(first)}), are {len(fixed)} pieces. Raise --vocab_size or lower --max_alphabet."
        )
    parameters = learner.Params(
        upper_thresh=None,
        lower_thresh=None,
        num_iterations=_ITERATIONS,
        max_input_tokens=-1,
        max_token_length=LONGEST_WORD,
        max_unique_chars=max_alphabet,
        vocab_size=vocab_size,
        slack_ratio=0.0,
        include_joiner_token=True,
        joiner="##",
        reserved_tokens=list(first),
    )
    vocabulary = _smallest_sufficient(
        lambda threshold: learner.learn_with_thresh(words, threshold, parameters),
        vocab_size,
        max(1, sum(counts.values()) // (10 * vocab_size)),
    )
    return _cut(vocabulary, vocab_size, fixed)


def _smallest_sufficient(learn: Callable[[int], list[str]], vocab_size: int, threshold: int) -> list[str]:
    """The vocabulary of the highest threshold that gives enough pieces, or nearly that; else that of threshold 1.

    Args:
      learn: threshold -> vocabulary.
      vocab_size: what is enough.
      threshold: where to begin.
    """
    enough = too_few = None  # thresholds and sizes on either side
    while True:
        vocabulary = learn(threshold)
        say(f"Pieces that occur {threshold} times at least: {len(vocabulary)}")
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
    """The threshold that should give `wanted` pieces if sizes fall as a power of the threshold."""
    (low, most), (high, fewest) = enough, too_few
    share = math.log(most / wanted) / math.log(most / fewest)
    guess = round(low * (high / low) ** min(max(share, 0.1), 0.9))
    return min(max(guess, low + 1), high - 1)


def _cut(vocabulary: Sequence[str], vocab_size: int, fixed: set[str]) -> list[str]:
    """Leaves out the last pieces, but none that is fixed."""
    room = vocab_size - len(fixed)
    kept = []
    for piece in vocabulary:
        if piece in fixed or room > 0:
            kept.append(piece)
            room -= piece not in fixed
    return kept
