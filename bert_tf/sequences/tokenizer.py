"""A tokenizer that makes the batches that a model reads, as users of Hugging Face's tokenizers are used to."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.sequences import packing
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.vocabulary import CLS, CONTINUATION, SEP, SPECIAL_TOKENS

if TYPE_CHECKING:
    import tensorflow as tf

# The number of positions of the released models.
_MAX_LENGTH = 512


def pack_texts(
    tokenizer: FullTokenizer, text_a: str, text_b: str | None, max_seq_length: int
) -> tuple[list[int], list[int]]:
    """Returns the ids of [CLS] A [SEP] B [SEP] and the segment ids, cut to `max_seq_length` but not padded."""
    segment_b = None if text_b is None else tokenizer.encode(text_b)
    a, b = packing.fit_segments(tokenizer.encode(text_a), segment_b, max_seq_length)
    return packing.join_segments(a, b, cls=tokenizer.vocab[CLS], sep=tokenizer.vocab[SEP])


class Tokenizer(FullTokenizer):
    """`FullTokenizer`, which can also be called with texts, and turns ids back into text.

    tokenizer = bert_tf.load_model("models/bert-base").tokenizer
    batch = tokenizer(["a text", ("a text", "and a second one")], max_length=128)
    tokenizer.decode(batch["input_ids"][0])
    """

    def __call__(
        self,
        texts: str | tuple[str, str] | Sequence[str | tuple[str, str]],
        text_pair: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        padding: bool | str = True,
        truncation: bool | str = True,
        return_tensors: str = "np",
    ) -> "dict[str, np.ndarray | tf.Tensor]":
        """Makes a batch of B sequences: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] for a pair.

        Args:
          texts: a text, a pair (a tuple), or a list of texts and pairs.
          text_pair: the second texts, if `texts` has only the first ones.
          max_length: longer sequences are cut as in fine-tuning: the longer text of a pair loses tokens first;
            512 if None.
          padding: True or "longest": zeros up to the longest sequence of the batch; "max_length": up to `max_length`.
          truncation: True or "longest_first"; False or "do_not_truncate" makes a longer sequence an error.
          return_tensors: "np" or "tf".

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, [B, T] int32: what `BertEncoder` takes.

        Raises:
          InputError: if anything but texts is given, there are none, or a sequence is too long and may not be cut.
        """
        max_length = _MAX_LENGTH if max_length is None else max_length
        packing.check_max_seq_length(max_length)
        if padding not in (True, "longest", "max_length"):
            raise InputError(f"padding is {padding!r}, but True, 'longest' or 'max_length' is expected.")
        if truncation not in (True, "longest_first", False, "do_not_truncate"):
            raise InputError(
                f"truncation is {truncation!r}, but True, 'longest_first', False or 'do_not_truncate' is expected."
            )
        is_cut = truncation in (True, "longest_first")
        if return_tensors not in ("np", "tf"):
            raise InputError(f"return_tensors is {return_tensors!r}, but 'np' or 'tf' is expected.")
        pairs = _pairs(texts, text_pair)
        # One token more than may stay shows that a sequence is too long.
        packed = [pack_texts(self, *pair, max_length + (not is_cut)) for pair in pairs]
        length = max(len(ids) for ids, _ in packed)
        if length > max_length:
            number = next(number for number, (ids, _) in enumerate(packed) if len(ids) > max_length)
            raise InputError(f"text {number} has more than {max_length} tokens, and truncation is {truncation!r}.")
        batch = packing.pad_all(packed, max_length if padding == "max_length" else length)
        if return_tensors == "np":
            return batch
        import tensorflow as tf  # text needs no TensorFlow

        return {name: tf.constant(column) for name, column in batch.items()}

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Joins the pieces of ids to words with spaces between them; capitals and accents that are lost stay lost.

        Args:
          ids: of one sequence; a list, an array or a tensor.
          skip_special_tokens: leave out [CLS], [SEP], [PAD], [MASK] and [UNK].

        Raises:
          InputError: if `ids` are those of several sequences; see `batch_decode`.
          KeyError: if an id is not in the vocabulary.
        """
        ids = np.asarray(ids if hasattr(ids, "__len__") else list(ids))
        if ids.ndim != 1:
            raise InputError(f"ids of the shape {list(ids.shape)} are not one sequence; batch_decode() takes several.")
        tokens = self.convert_ids_to_tokens(map(int, ids))
        kept = [token for token in tokens if not (skip_special_tokens and token in SPECIAL_TOKENS)]
        return " ".join(kept).replace(f" {CONTINUATION}", "")

    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        """Does what `decode` does with each of several sequences, such as a batch's `input_ids`."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]


def _pairs(texts: object, text_pair: object) -> list[tuple[str, str | None]]:
    """Texts and second texts, None where there is none."""
    given = list(texts) if isinstance(texts, list | np.ndarray) else [texts]
    if text_pair is not None:
        second = list(text_pair) if isinstance(text_pair, list | np.ndarray) else [text_pair]
        if len(given) != len(second):
            raise InputError(f"{len(given)} texts have {len(second)} second texts; as many of each are expected.")
        given = list(zip(given, second, strict=True))
    if not given:
        raise InputError("no text is given, but at least one is needed.")
    pairs = []
    for text in given:
        parts = (text,) if isinstance(text, str) else text
        if not (isinstance(parts, tuple) and len(parts) in (1, 2) and all(isinstance(part, str) for part in parts)):
            raise InputError(f"{str(text)[:60]!r} is given, but a text, a pair of texts or a list of them is expected.")
        pairs.append((parts[0], parts[1] if len(parts) == 2 else None))
    return pairs
