"""What is exported of sentence tasks: classes, several labels, or a number for texts and pairs; choices of endings.

Axis letters: B batch, T tokens, C classes or endings, H hidden.
"""

from collections.abc import Sequence

import tensorflow as tf

from bert_tf.finetuning.models import ClassifierModel
from bert_tf.model.heads import ClassificationHead
from bert_tf.sequences.graph_packing import TokenBatch
from bert_tf.serving.bilstm import TextEncoder
from bert_tf.serving.finished_run import Exportable, FinishedRun, plain_logits
from bert_tf.serving.output_layer import OutputLayer
from bert_tf.serving.reader import (
    TEXT_LISTS,
    TEXTS,
    Signature,
    TextReader,
    check_equally_many,
    ids_signature,
    read_ids,
    signature,
)
from bert_tf.tasks.glue import DEFINITIONS

# From which probability on an example has a label, where it may have several.
_CHOSEN = 0.5


class _Scores(tf.Module):
    """The encoder with a classifier's output layer."""

    def __init__(self, encoder: TextEncoder, head: ClassificationHead) -> None:
        super().__init__(name="scores")
        self.encoder = encoder
        self._output = OutputLayer(head)

    def __call__(self, batch: TokenBatch) -> tf.Tensor:
        """[B] sequences -> logits [B, C], float32."""
        return self._output(self.encoder.pooled_output(batch))


class ServedClassifier(tf.Module):
    """A classifier of texts or pairs.

    Args:
      encoder: the model.
      head: its output layer.
      texts: what reads its texts.
      labels: the classes; None for regression.
      multi_label: whether a text may have several of them.
      is_pair: whether an example has two texts.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        head: ClassificationHead,
        texts: TextReader,
        *,
        labels: Sequence[str] | None,
        multi_label: bool,
        is_pair: bool,
    ) -> None:
        super().__init__(name="classifier")
        self._scores = _Scores(encoder, head)
        self._texts = texts
        self._labels = None if labels is None else tf.constant(list(labels))
        self._multi_label = multi_label
        self._is_pair = is_pair

    def signatures(self) -> dict[str, Signature]:
        """`serving_default`: text_a [B], and text_b [B] for pairs; `ids`: input_ids, input_mask, segment_ids [B, T].

        Both give `logits` and `probabilities` [B, C], or for regression `score` [B]. From texts there are besides:
        `label` [B], or for several labels `chosen` [B, C], whether each is one; `label_names` [B, C], the same for each
        text; and `truncated` [B], whether the text was cut.
        """
        names = ("text_a", "text_b") if self._is_pair else ("text_a",)
        return {
            "serving_default": signature(self._from_texts, **dict.fromkeys(names, TEXTS)),
            "ids": ids_signature(self._from_ids),
        }

    def _from_texts(self, text_a: tf.Tensor, text_b: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        batch, truncated = self._texts.read(text_a, text_b)
        outputs = self._outputs(batch) | {"truncated": truncated}
        if self._labels is None:
            return outputs
        probabilities = outputs["probabilities"]
        outputs["label_names"] = tf.repeat(self._labels[tf.newaxis], tf.shape(probabilities)[0], axis=0)
        if self._multi_label:
            return outputs | {"chosen": probabilities >= _CHOSEN}
        return outputs | {"label": tf.gather(self._labels, tf.argmax(outputs["logits"], axis=-1))}

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._outputs(read_ids(self._scores.encoder.config, input_ids, input_mask, segment_ids))

    def _outputs(self, batch: TokenBatch) -> dict[str, tf.Tensor]:
        logits = self._scores(batch)
        if self._labels is None:
            return {"score": logits[:, 0]}
        return {"logits": logits, "probabilities": tf.sigmoid(logits) if self._multi_label else tf.nn.softmax(logits)}


class ServedChooser(tf.Module):
    """Chooses between endings of a prompt.

    Args:
      encoder: the model.
      head: its output layer.
      texts: what reads its texts.
    """

    def __init__(self, encoder: TextEncoder, head: ClassificationHead, texts: TextReader) -> None:
        super().__init__(name="chooser")
        self._scores = _Scores(encoder, head)
        self._texts = texts

    def signatures(self) -> dict[str, Signature]:
        """`serving_default`: prompt [B], endings [B, C]; `ids`: input_ids, input_mask, segment_ids [B, T].

        An empty ending stands for none, so that examples may have more endings or fewer; its probability is 0. From
        texts there are `choice` [B], the number of the best ending, -1 if there is none; `probabilities` [B, C]; and
        `truncated` [B, C]. From ids there is `score` [B] of a sequence, [CLS] prompt [SEP] ending [SEP]; a softmax over
        an example's scores makes probabilities of them.
        """
        return {
            "serving_default": signature(self._from_texts, prompt=TEXTS, endings=TEXT_LISTS),
            "ids": ids_signature(self._from_ids),
        }

    def _from_texts(self, prompt: tf.Tensor, endings: tf.Tensor) -> dict[str, tf.Tensor]:
        check_equally_many(prompt=prompt, endings=endings)
        shape = tf.shape(endings)
        is_ending = tf.strings.length(endings) > 0
        prompts = tf.boolean_mask(tf.repeat(prompt[:, tf.newaxis], shape[1], axis=1), is_ending)
        batch, truncated = self._texts.read(prompts, tf.boolean_mask(endings, is_ending))
        places = tf.where(is_ending)
        shape = tf.cast(shape, tf.int64)
        scores = tf.scatter_nd(places, self._scores(batch)[:, 0], shape)
        scores = tf.where(is_ending, scores, scores.dtype.min)
        probabilities = tf.where(is_ending, tf.nn.softmax(scores), 0.0)
        any_ending = tf.reduce_any(is_ending, axis=1)
        # A column more, so that there is a greatest one where there are no endings.
        best = tf.argmax(tf.pad(scores, [[0, 0], [0, 1]], constant_values=scores.dtype.min), 1, tf.int32)
        return {
            "choice": tf.where(any_ending, best, -1),
            "probabilities": probabilities,
            "truncated": tf.scatter_nd(places, truncated, shape),
        }

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = read_ids(self._scores.encoder.config, input_ids, input_mask, segment_ids)
        return {"score": self._scores(batch)[:, 0]}


def exportable_glue(run: FinishedRun) -> Exportable:
    """What is exported of a run of one of GLUE's tasks."""
    definition = DEFINITIONS[run.settings["task"]]
    problem = "classification" if definition.labels else "regression"
    return _exportable_classifier(run, problem, definition.labels, is_pair=definition.text_b is not None)


def exportable_custom(run: FinishedRun) -> Exportable:
    """What is exported of a run on somebody's own table."""
    return _exportable_classifier(
        run, run.settings["problem"], run.labels, is_pair=bool(run.flags.get("text_b_column"))
    )


def exportable_chooser(run: FinishedRun) -> Exportable:
    """What is exported of a run that learned to choose between endings."""
    model = ClassifierModel(run.config, 1, **run.encoder_options)
    run.restore(model)
    return Exportable(ServedChooser(run.encoder(model), model.head, run.texts()), plain_logits(model))


def _exportable_classifier(run: FinishedRun, problem: str, labels: Sequence[str] | None, is_pair: bool) -> Exportable:
    model = ClassifierModel(run.config, len(labels) if labels else 1, problem, **run.encoder_options)
    run.restore(model)
    is_multi_label = problem == "multi_label"
    served = ServedClassifier(
        run.encoder(model), model.head, run.texts(), labels=labels, multi_label=is_multi_label, is_pair=is_pair
    )
    return Exportable(served, plain_logits(model))
