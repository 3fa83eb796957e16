"""Checks the counts of pre-training examples for unusual values."""

from collections.abc import Iterable, Iterator, Mapping

from bert_tf.data_report.findings import Finding
from bert_tf.data_report.texts import unknown_tokens

# Largest usual fraction of random next sentences. In one text with a paragraph per line, 80% of the next sentences were
# random. After splitting into sentences, 56% were random.
_RANDOM_NEXT = 0.65
# Largest usual fraction of documents of one sentence, and mean number of tokens in a sentence. Paragraphs have more.
_SINGLE, _SENTENCE_TOKENS = 0.5, 40
# Smallest usual number of masks, as a fraction of the number that the settings define.
_MASKED = 0.9
_SPECIAL = 3  # [CLS] and two [SEP]


def unused_predictions(wanted: int, most: int, flag: str) -> Iterator[Finding]:
    """Finds a limit of predictions that no sequence reaches.

    Args:
      wanted: the number of tokens to mask in the longest sequence.
      most: the largest number of predictions.
      flag: the flag of this number.
    """
    if most > 2 * wanted:
        message = f"{flag}={most}: sequences have at most {wanted} masked tokens. Use {wanted} for faster training."
        yield Finding("unused_predictions", message)


def missing_masks(
    predictions: float, tokens: int, share: float, length: int, most: int, flag: str, where: str
) -> Iterator[Finding]:
    """Finds a limit of predictions that leaves out many of the masks.

    Args:
      predictions: the number of masked tokens.
      tokens: the number of tokens.
      share: the fraction of tokens to mask.
      length: the number of tokens in the longest sequence.
      most: see `unused_predictions`.
      flag: see `unused_predictions`.
      where: the location of the data, for messages.
    """
    wanted = round(length * share)
    if wanted > most and 0 < predictions < _MASKED * share * tokens:
        yield Finding(
            "masks",
            f"{where}: {predictions / tokens:.1%} of the tokens are masked instead of {share:.0%}, because {flag} is "
            f"{most}. Set {flag}={wanted} to mask them all.",
        )


def shared_files(held_out: Iterable[str], training: Iterable[str], flag: str) -> Iterator[Finding]:
    """Finds held-out files whose content is in the training files. The arguments are descriptions of the files."""
    if shared := set(held_out) & set(training):
        yield Finding("shared", f"{flag}: {len(shared)} files are also training files. Use other held-out files.")


def unusual_counts(
    counts: Mapping[str, int], where: str, flag: str, length: int, most: int, share: float
) -> Iterator[Finding]:
    """Finds unknown tokens and missing masks in the counts of records; see `records.count_examples` of `data_prep`.

    Args:
      counts: the counts, summed over all files. Data of older versions has no count of unknown tokens.
      where: see `missing_masks`.
      flag: see `unused_predictions`.
      length: see `missing_masks`.
      most: see `unused_predictions`.
      share: see `missing_masks`.
    """
    yield from unknown_tokens(counts.get("unknown", 0), text_tokens(counts), where)
    predictions, tokens = counts.get("predictions", 0), counts.get("tokens", 0)
    yield from missing_masks(predictions, tokens, share, length, most, flag, where)


def text_tokens(counts: Mapping[str, int]) -> int:
    """Returns the number of tokens of records, without [CLS] and [SEP]."""
    return counts.get("tokens", 0) - _SPECIAL * counts.get("records", 0)


def random_sentences(counts: Mapping[str, int], max_seq_length: int, splits_sentences: bool) -> Iterator[Finding]:
    """Finds too many random next sentences, and names the cause.

    Sequences that are too short for two sentences, as in the first steps of a tiny model, are usual.

    Args:
      counts: the counts of records, documents, and documents of one sentence.
      max_seq_length: the largest number of tokens in a sequence.
      splits_sentences: whether lines were split into sentences.
    """
    if max_seq_length <= _SENTENCE_TOKENS:
        return
    records, random_next = counts.get("records", 0), counts.get("random_next", 0)
    if random_next <= _RANDOM_NEXT * records + records**0.5:  # in a few examples, the fraction varies
        return
    single, documents = counts.get("documents_of_one_sentence", 0), counts.get("documents", 0)
    mean = counts.get("corpus_tokens", 0) / max(1, counts.get("sentences", 0))
    cause, remedy = "A line that fills a sequence has no true next sentence", "Set a larger --max_seq_length."
    if mean > _SENTENCE_TOKENS and not splits_sentences:
        cause = f"Lines have {mean:.0f} tokens on average, so they are probably paragraphs"
        remedy = "Pass --split_sentences (and --language)."
    elif single > _SINGLE * documents:
        cause = f"{single} of {documents} documents are one sentence"
        remedy = (
            "Pass --documents=file, or remove the blank lines inside documents. For texts of one sentence, train with "
            "--objective=mlm."
        )
    yield Finding(
        "random_next",
        f"{random_next / records:.0%} of the examples have a random next sentence instead of about 50%. {cause}. "
        f"{remedy}",
    )
