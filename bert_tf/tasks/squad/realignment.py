"""The release's way from predicted pieces back to the text as it was written: find them in the tokenized text.

Pieces are lower-cased, stripped of accents and set apart from punctuation, so an answer made of them isn't yet what the
paragraph says. The release tokenizes the words around the answer, finds the answer there, and counts characters, spaces
left out, to get from the tokenized words to the original ones. Where the counts differ it keeps those words whole.
"""

from collections.abc import Sequence

from absl import logging

from bert_tf.tokenization import BasicTokenizer


def join_pieces(pieces: Sequence[str]) -> str:
    """Pieces put together to basic tokens, with spaces between them."""
    return " ".join(pieces).replace(" ##", "").replace("##", "")


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool, verbose_logging: bool = False) -> str:
    """What of the original words stands for a predicted text.

    The words "Steve Smith's" and the prediction "steve smith" give "Steve Smith".

    Args:
      pred_text: the predicted pieces, put together.
      orig_text: the words of the paragraph that the pieces come from.
      do_lower_case: as the pieces were made.
      verbose_logging: whether the log names what can't be aligned.

    Returns:
      The part of `orig_text`, or the whole of it if that can't be found.
    """
    tokenized_text = " ".join(BasicTokenizer(do_lower_case=do_lower_case).tokenize(orig_text))
    found = realign(pred_text, orig_text, tokenized_text)
    if found is None and verbose_logging:
        logging.info("Can't align the prediction %r with the words %r; they are kept whole.", pred_text, orig_text)
    return orig_text if found is None else found


def realign(pred_text: str, orig_text: str, tokenized_text: str) -> str | None:
    """The part of a text that stands for a part of its tokenized form.

    Args:
      pred_text: what is sought.
      orig_text: a text as written.
      tokenized_text: its basic tokens, joined by spaces.

    Returns:
      The part of `orig_text`, or None if the prediction isn't found, or the two texts differ in more than spaces.
    """
    start = tokenized_text.find(pred_text)
    if start < 0 or pred_text != pred_text.strip(" ") or not pred_text:
        return None
    if _count_solid(orig_text) != _count_solid(tokenized_text):
        return None
    first = _find_solid(orig_text, _count_solid(tokenized_text, start), 0)
    last = _find_solid(orig_text, _count_solid(pred_text) - 1, first)
    return orig_text[first : last + 1]


def _count_solid(text: str, end: int | None = None) -> int:
    """How many characters before `end` are something other than a space."""
    end = len(text) if end is None else end
    return end - text.count(" ", 0, end)


def _find_solid(text: str, number: int, begin: int) -> int:
    """The place of the character that has `number` others, spaces not counted, between `begin` and itself."""
    place = begin + number
    while place != (further := begin + number + text.count(" ", begin, place + 1)):
        place = further
    return place
