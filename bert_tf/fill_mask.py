"""What a pre-trained model would put in the place of each [MASK] of a text.

python -m bert_tf.fill_mask --model=runs/pretraining --text="It is a truth universally [MASK]."
"""

import dataclasses

import tensorflow as tf
from absl import flags

from bert_tf.checkpoints import pretrained
from bert_tf.runtime import program
from bert_tf.runtime.files import InputError
from bert_tf.sequences import packing

_MODEL = flags.DEFINE_string(
    "model", None, "A pre-training run, or another folder or checkpoint with a masked-LM head."
)
_TEXT = flags.DEFINE_multi_string(
    "text", None, "A text with [MASK]s; may be repeated. By default, lines of standard input."
)
_TOP = flags.DEFINE_integer("top", 5, "Guesses for each [MASK].", lower_bound=1)

MASK = "[MASK]"


@dataclasses.dataclass(frozen=True)
class Guess:
    """A piece of the vocabulary, and the probability that it is the one that was masked."""

    token: str
    probability: float


class MaskFiller:
    """Guesses masked pieces.

    Args:
      path: as of `bert_tf.load`; the checkpoint has a masked-LM head and a vocab.txt beside it.
      do_lower_case: as of `bert_tf.load`.

    Raises:
      InputError: if something is missing, or doesn't fit together.
    """

    def __init__(self, path: str, do_lower_case: bool | None = None) -> None:
        self.bert = pretrained.load(path, do_lower_case)
        if self.bert.tokenizer is None:
            raise InputError(f"fill_mask: there is no vocab.txt beside {self.bert.source.path}; put the model's there.")
        self.head = self.bert.masked_lm("fill_mask")
        if self.head is None:
            raise InputError(f"fill_mask: {self.bert.source.path} has no masked-LM head; take a pre-trained model.")

    def __call__(self, text: str, top: int = 5) -> list[list[Guess]]:
        """The best `top` guesses for each [MASK] of a text, best first.

        Raises:
          InputError: if the text has no [MASK], or too many pieces for the model.
        """
        ids = self._encode(text)
        mask_id = self.bert.tokenizer.vocab[MASK]
        positions = [position for position, piece in enumerate(ids) if piece == mask_id]
        sequence_output = self.bert.encoder(tf.constant([ids])).sequence_output
        logits = self.head(sequence_output, tf.constant([positions]), self.bert.encoder.embedding_table)[0]
        probabilities, pieces = tf.math.top_k(tf.nn.softmax(logits), min(top, self.bert.config.vocab_size))
        names = self.bert.tokenizer.convert_ids_to_tokens
        return [
            [Guess(token, float(p)) for token, p in zip(names(row), row_probabilities, strict=True)]
            for row, row_probabilities in zip(pieces.numpy().tolist(), probabilities.numpy(), strict=True)
        ]

    def _encode(self, text: str) -> list[int]:
        """[CLS] text [SEP], in which [MASK] stays whole."""
        parts = text.split(MASK)
        if len(parts) == 1:
            raise InputError(f"fill_mask: {text!r} has no {MASK}; put one where a word is to be guessed.")
        vocab = self.bert.tokenizer.vocab
        ids = self.bert.tokenizer.encode(parts[0])
        for part in parts[1:]:
            ids += [vocab[MASK], *self.bert.tokenizer.encode(part)]
        longest = self.bert.config.max_position_embeddings
        if len(ids) + 2 > longest:
            raise InputError(f"fill_mask: the text has {len(ids)} pieces, but the model takes {longest - 2} at most.")
        return packing.join_segments(ids, [], vocab["[CLS]"], vocab["[SEP]"])[0]


def main() -> None:
    """Prints the guesses for each text."""
    filler = MaskFiller(_MODEL.value)
    for text in _TEXT.value or program.typed_lines():
        print(text)
        for guesses in filler(text, _TOP.value):
            print("   " + "   ".join(f"{guess.token} {guess.probability:.1%}" for guess in guesses))


if __name__ == "__main__":
    flags.mark_flags_as_required(["model"])
    program.run(main)
