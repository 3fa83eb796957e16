"""From predicted pieces back to the text as it was written.

Pieces are lower-cased, stripped of accents and separated from punctuation, so an answer made of pieces isn't yet the
paragraph's own text. The release tokenizes the words around the answer, finds the answer there, and counts characters
without spaces to get from the tokenized words to the original ones. Where the counts differ it keeps those words whole.
"""

from collections.abc import Sequence

from absl import logging

from bert_tf.tokenization import BasicTokenizer


def join_pieces(pieces: Sequence[str]) -> str:
    """Joins pieces to basic tokens, with spaces between the tokens."""
    return " ".join(pieces).replace(" ##", "").replace("##", "")


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool, verbose_logging: bool = False) -> str:
    """Finds the part of the original words that a predicted text stands for.

    The words "Steve Smith's" and the prediction "steve smith" give "Steve Smith".

    Args:
      pred_text: the predicted pieces, joined to basic tokens.
      orig_text: the words of the paragraph that the pieces come from.
      do_lower_case: whether the pieces are lower-cased.
      verbose_logging: whether the log names predictions that can't be aligned.

    Returns:
      The part of `orig_text`. If the prediction isn't found in the tokenized words, or these differ from the original
      words in more than spaces, the whole of `orig_text`.
    """
    return final_text(pred_text, orig_text, BasicTokenizer(do_lower_case=do_lower_case), verbose_logging)


def final_text(pred_text: str, orig_text: str, tokenizer: BasicTokenizer, verbose_logging: bool) -> str:
    """Does the work of `get_final_text`, with a tokenizer that has seen most of the words."""
    tokenized_text = " ".join(tokenizer.tokenize(orig_text))
    start = tokenized_text.find(pred_text)
    is_text = bool(pred_text) and pred_text == pred_text.strip(" ")
    if start < 0 or not is_text or _count_solid(orig_text) != _count_solid(tokenized_text):
        if verbose_logging:
            logging.info("Can't align the prediction %r with the words %r; they are kept whole.", pred_text, orig_text)
        return orig_text
    first = _find_solid(orig_text, _count_solid(tokenized_text, start), 0)
    last = _find_solid(orig_text, _count_solid(pred_text) - 1, first)
    return orig_text[first : last + 1]


def _count_solid(text: str, end: int | None = None) -> int:
    """The number of characters before `end` that aren't spaces."""
    end = len(text) if end is None else end
    return end - text.count(" ", 0, end)


def _find_solid(text: str, number: int, begin: int) -> int:
    """The place of the character that has `number` characters between `begin` and itself, not counting spaces."""
    place = begin + number
    while place != (further := begin + number + text.count(" ", begin, place + 1)):
        place = further
    return place
