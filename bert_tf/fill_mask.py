"""Prints the tokens that a pre-trained model predicts for each [MASK] in a text, or the scores of texts.

python -m bert_tf.fill_mask --model=runs/pretraining --text="It is a truth universally [MASK]."
python -m bert_tf.fill_mask --model=runs/pretraining --score_file=sentences.txt > scores.tsv

Each [MASK] is predicted independently of the predictions for other masks.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from absl import flags

from bert_tf.finetuning import feature_sets
from bert_tf.runtime import files, messages, program, reporting
from bert_tf.runtime.errors import InputError, is_no_list, require_whole, spelled
from bert_tf.runtime.settings import not_with
from bert_tf.sequences import packing
from bert_tf.text.vocabulary import MASK, UNK

if TYPE_CHECKING:
    from bert_tf.checkpoints.pretrained import LoadedBert
    from bert_tf.model.heads import MaskedLMHead

# Number of texts with the largest length to score together. Batches of shorter texts are larger.
_BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True)
class Guess:
    """A token of the vocabulary, and its probability at the position of a [MASK]."""

    token: str
    probability: float


@dataclasses.dataclass(frozen=True)
class SentenceScore:
    """The score of a text by a masked language model (Salazar et al., 2020).

    Attributes:
      pseudo_log_likelihood: the sum of the natural logarithms of the probabilities of all tokens except [CLS] and
        [SEP]. Each token is predicted with only this token masked.
      num_tokens: the number of tokens except [CLS] and [SEP].
    """

    pseudo_log_likelihood: float
    num_tokens: int


def pseudo_perplexity(scores: Sequence[SentenceScore]) -> float:
    """Returns exp(-sum of pseudo-log-likelihoods / sum of tokens) of some texts; NaN if they have no tokens."""
    total = sum(score.num_tokens for score in scores)
    mean = sum(score.pseudo_log_likelihood for score in scores) / total if total else math.nan
    return float(np.exp(-mean))


class FillMask:
    """Predicts masked tokens, and scores texts with these predictions.

    Examples:
      >>> filler = bert_tf.FillMask.from_pretrained("build/quickstart/pretrained")
      >>> filler("It would [MASK] better to go.", top=2)
      [[Guess(token='be', probability=0.33706289529800415), Guess(token='have', probability=0.13276875019073486)]]

    Args:
      path: see `bert_tf.load_model`. The checkpoint must have a masked-LM head, and the directory a vocabulary.
      do_lower_case: see `bert_tf.load_model`.

    Raises:
      InputError: if a file or the head is missing, or the files do not match each other.
    """

    def __init__(self, path: str, do_lower_case: bool | None = None) -> None:
        from bert_tf.checkpoints import pretrained

        self.bert: LoadedBert = pretrained.load_model(path, do_lower_case, caller="FillMask()")
        pretrained.required_tokenizer(self.bert.tokenizer, self.bert.source.path, "FillMask()")
        head = self.bert.masked_lm("FillMask()")
        if head is None:
            raise InputError(f"FillMask(): {self.bert.source.path} has no masked-LM head. Use a pre-trained model.")
        self.head: MaskedLMHead = head

    @classmethod
    def from_pretrained(cls, path: str, *, do_lower_case: bool | None = None) -> Self:
        """Same as the constructor. The other classes of the package also have this method."""
        return cls(path, do_lower_case)

    def __repr__(self) -> str:
        return f"FillMask({self.bert.source.path!r})"

    @overload
    def __call__(self, text: str, top: int = 5, targets: Sequence[str] = ()) -> list[list[Guess]]: ...

    @overload
    def __call__(
        self, text: list[str] | tuple[str, ...], top: int = 5, targets: Sequence[str] = ()
    ) -> list[list[list[Guess]]]: ...

    def __call__(
        self, text: str | list[str] | tuple[str, ...], top: int = 5, targets: Sequence[str] = ()
    ) -> list[list[Guess]] | list[list[list[Guess]]]:
        """Predicts the most probable tokens for each [MASK] in a text.

        Args:
          text: a text, or a list of texts, each with at least one [MASK].
          top: the largest number of guesses for each [MASK].
          targets: a word, or the words to choose from, each a single token of the vocabulary; by default all tokens.
            Probabilities are computed over all tokens.

        Returns:
          For each [MASK], a list of guesses, most probable first. For a list of texts, one such result for each text.

        Raises:
          InputError: if `text` is not a text, has no [MASK], or has too many tokens for the model; if `top` is below 1;
            or if a target is not a single token.
        """
        require_whole("FillMask(): top", top, 1)
        words = [targets] if isinstance(targets, str) else targets
        ids = [self._target_id(word) for word in words] or list(range(self.bert.config.vocab_size))
        texts = text if isinstance(text, list | tuple) else [text]
        guesses = [self._fill(self._encode(prompt), top, ids) for prompt in texts]
        return guesses if isinstance(text, list | tuple) else guesses[0]

    def score(self, texts: Sequence[str], verbose: bool = False) -> list[SentenceScore]:
        """Computes the pseudo-log-likelihoods of texts, with one prediction for each token.

            scores = filler.score(["It is a truth.", "It is a are."])
            print(scores[0].pseudo_log_likelihood, pseudo_perplexity(scores))

        A text is tokenized as in fine-tuning: "[MASK]" in a text has no special meaning.

        Args:
          texts: the texts. A text without tokens has the score 0.
          verbose: whether to show a progress bar.

        Raises:
          InputError: if `texts` is not a list of texts, or a text has too many tokens for the model.
        """
        if is_no_list(texts):
            raise InputError(f"texts is {str(texts)[:60]!r}. Pass a list of texts.", "texts")
        features = feature_sets.FeatureSet.from_sequences([self._packed(text, [text]) for text in texts])
        buckets, scores = feature_sets.bucket_lengths(self.bert.config.max_position_embeddings), np.zeros(len(features))
        with reporting.progress_bar(len(features), "score", unit="text", shown=verbose) as bar:
            for numbers, batch in feature_sets.batches_by_length(features, _BATCH_SIZE, buckets):
                scores[numbers] = self._pseudo_log_likelihoods(**batch).numpy()
                bar.update(len(numbers))
        return list(map(SentenceScore, scores.tolist(), (features.lengths - 2).tolist()))

    @functools.cached_property
    def _pseudo_log_likelihoods(self) -> Callable[..., Any]:
        from bert_tf.graphs.encoder import InferenceEncoder
        from bert_tf.graphs.pretrained import pseudo_log_likelihoods
        from bert_tf.graphs.text_reader import ids_function

        encoder = InferenceEncoder(self.bert.encoder, self.bert.encoder.compute_dtype, self.head)
        mask_id = self.bert.tokenizer.vocab[MASK]
        return ids_function(lambda batch: pseudo_log_likelihoods(encoder, batch, mask_id))

    def _target_id(self, target: str) -> int:
        tokens = self.bert.tokenizer.tokenize(target) if isinstance(target, str) else []
        if len(tokens) != 1 or tokens == [UNK]:
            raise InputError(f"{target!r} is not a single token of the vocabulary. Use another word.", "targets")
        return self.bert.tokenizer.vocab[tokens[0]]

    def _fill(self, ids: list[int], top: int, choices: Sequence[int]) -> list[list[Guess]]:
        import tensorflow as tf

        mask_id = self.bert.tokenizer.vocab[MASK]
        positions = [position for position, piece in enumerate(ids) if piece == mask_id]
        states = self.bert.encoder(tf.constant([ids])).sequence_output
        logits = self.head(states, tf.constant([positions]), self.bert.encoder.embedding_table)[0]
        probabilities, numbers = tf.math.top_k(
            tf.gather(tf.nn.softmax(logits), choices, axis=1), min(top, len(choices))
        )
        names = self.bert.tokenizer.inv_vocab  # may be smaller than the embedding table
        return [
            [Guess(names.get(choices[i], UNK), float(p)) for i, p in zip(row, row_probabilities, strict=True)]
            for row, row_probabilities in zip(numbers.numpy().tolist(), probabilities.numpy(), strict=True)
        ]

    def _encode(self, text: str) -> list[int]:
        """Returns the ids of [CLS] text [SEP]. Each [MASK] is one token."""
        if isinstance(text, str) and MASK not in text:
            raise InputError(f"FillMask(): {text!r} has no {MASK}. Replace a word by {MASK}.")
        return self._packed(text, text.split(MASK) if isinstance(text, str) else [])[0]

    def _packed(self, text: str, fragments: Sequence[str]) -> tuple[list[int], list[int]]:
        """Returns the ids and the segment ids of [CLS] text [SEP], with a [MASK] between the fragments of the text."""
        if not isinstance(text, str):
            raise InputError(f"FillMask(): {str(text)[:60]!r} ({type(text).__name__}) is not a text. Pass a str.")
        vocab, (first, *others) = self.bert.tokenizer.vocab, map(self.bert.tokenizer.encode, fragments)
        ids = first + [number for fragment_ids in others for number in (vocab[MASK], *fragment_ids)]
        longest = self.bert.config.max_position_embeddings
        if len(ids) + 2 > longest:
            raise InputError(
                f"FillMask(): {text[:60]!r} has {len(ids)} tokens, but the model takes {longest - 2} at most. "
                "Shorten the text."
            )
        return packing.join_segments(ids, [], *self.bert.tokenizer.ends)


def _print_scores(filler: FillMask, lines: Sequence[str]) -> None:
    with spelled(lambda message: message.replace("FillMask()", "--score_file")):
        scores = filler.score(lines, verbose=True)
    print("line", "pseudo_log_likelihood", "num_tokens", "pseudo_perplexity", sep="\t")
    for number, score in enumerate(scores, 1):
        values = f"{score.pseudo_log_likelihood:.4f}", score.num_tokens, f"{pseudo_perplexity([score]):.4f}"
        print(number, *values, sep="\t")
    messages.say(f"Pseudo-perplexity of {len(scores)} texts: {pseudo_perplexity(scores):.4f}")


def cli() -> None:
    """Runs the program. The flags are defined here, because a program that uses `FillMask` may have the same flags."""
    model = flags.DEFINE_string(
        "model", None, "Directory, checkpoint or Hub name (owner/name) of a model with a masked-LM head."
    )
    texts = flags.DEFINE_multi_string(
        "text",
        None,
        "Text with at least one [MASK]; repeatable. Default: each line of standard input.",
    )
    top = flags.DEFINE_integer("top", 5, "Number of tokens to print for each [MASK].", lower_bound=1)
    targets = flags.DEFINE_list("targets", [], "Words to choose from, each a single token. Default: all tokens.")
    score_file = flags.DEFINE_string("score_file", None, "File of texts to score, one per line; -: standard input.")
    for name in ("text", "top", "targets"):
        program.needs(name, not_with("score_file"))

    def main() -> None:
        program.check_needs()
        with spelled(lambda message: message.replace("FillMask()", "--model")):
            filler = FillMask(model.value)
        if path := score_file.value:
            lines = program.typed_lines() if path == "-" else files.lines_of(files.read_text(path, "--score_file"))
            _print_scores(filler, list(lines))
            return
        refused = 0
        for text in texts.value or filter(str.strip, program.typed_lines()):
            print(text)
            try:
                results = filler(text, top.value, targets.value)
            except InputError as error:
                refused += 1
                messages.say(f"error: {error}")
                continue
            for guesses in results:
                print("   " + "   ".join(f"{guess.token} {guess.probability:.1%}" for guess in guesses))
        if refused:
            raise InputError(f"{refused} of the texts could not be filled in. See the messages above.")

    program.run(main, required=["model"])


if __name__ == "__main__":
    cli()
