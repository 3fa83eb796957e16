"""Served models of multiple choice and of sentence tasks: classification, multi-label and regression.

Axis letters: B batch, T tokens, C classes or endings, H hidden.
"""

import keyword

import tensorflow as tf

from bert_tf.checkpoints import class_names, run_record
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.graphs.encoder import InferenceEncoder, in_parts
from bert_tf.graphs.exportable import Exportable, FinishedRun
from bert_tf.graphs.packing import TokenBatch
from bert_tf.graphs.text_reader import (
    IDS,
    TEXT_LISTS,
    TEXTS,
    GraphTextReader,
    Signature,
    check_equally_many,
    read_ids,
    signature,
)
from bert_tf.sequences.text_packer import LongDocuments
from bert_tf.serving.answering import CHOICE_INPUTS, TEXT_INPUTS
from bert_tf.serving.lite_model import TextSettings
from bert_tf.tasks.data_config import ConfidenceConfig
from bert_tf.tasks.sentences.glue import DEFINITIONS
from bert_tf.text import Tokenizer


def _logits(encoder: InferenceEncoder, batch: TokenBatch) -> tf.Tensor:
    """Returns the logits [B, C], float32, of sequences [B]."""
    return in_parts(encoder.pooled_logits, batch, encoder.outputs)


class ServedClassifier(tf.Module):
    """A classifier of texts or pairs.

    Args:
      encoder: the encoder with the output layer.
      tokenizer: the model's tokenizer.
      settings: the inputs, the labels, how texts are read, and, in multi-label tasks, the threshold.
    """

    def __init__(self, encoder: InferenceEncoder, tokenizer: Tokenizer, settings: TextSettings) -> None:
        super().__init__(name="classifier")
        self._encoder = encoder
        documents = LongDocuments.from_flags(settings)
        self._texts = GraphTextReader(tokenizer, settings["max_seq_length"], documents=documents)
        self._labels = settings["labels"] and tf.constant(settings["labels"])
        self._threshold = settings.get("threshold")
        self._min_probability = settings.get("min_probability")
        self._abstain_label = settings.get("abstain_label")
        self._inputs = tuple(settings["inputs"])

    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures.

        - `serving_default` takes texts [B] and, for pairs, second texts [B], under the model's input names.
        - `token_ids` takes input_ids, input_mask and segment_ids [B, T].

        Both return `logits` and `probabilities` [B, C], or for regression `score` [B]. `serving_default` also returns:

        - `label` [B]; in multi-label tasks `chosen` [B, C], whether the example has each label.
        - `label_names` [B, C], the same in all rows.
        - `truncated` [B], whether the text was truncated.
        - With `min_probability`: `abstained` [B], whether the answer is less probable. Then, `label` is the abstain
          label, and no label is `chosen`.

        If a text is read in windows, its logits are the mean over the windows.
        """
        return {
            "serving_default": signature(self._from_texts, **dict.fromkeys(self._inputs, TEXTS)),
            "token_ids": signature(self._from_ids, **IDS),
        }

    def _from_texts(self, text_a: tf.Tensor, text_b: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        if self._texts.documents.has_windows:
            batch, text_numbers = self._texts.read_windows(text_a)
            logits = tf.math.segment_mean(_logits(self._encoder, batch), text_numbers)
            truncated = tf.zeros_like(text_a, tf.bool)
        else:
            batch, truncated = self._texts.read(text_a, text_b, self._inputs)
            logits = _logits(self._encoder, batch)
        outputs = self._outputs(logits) | {"truncated": truncated}
        if self._labels is None:
            return outputs
        probabilities = outputs["probabilities"]
        outputs["label_names"] = tf.repeat(self._labels[tf.newaxis], tf.shape(probabilities)[0], axis=0)
        if self._threshold is not None:
            outputs["chosen"] = probabilities >= self._threshold
            confidence = tf.reduce_min(tf.where(outputs["chosen"], probabilities, 1.0 - probabilities), axis=-1)
        else:
            outputs["label"] = tf.gather(self._labels, tf.argmax(outputs["logits"], axis=-1))
            confidence = tf.reduce_max(probabilities, axis=-1)
        if self._min_probability is None:
            return outputs
        outputs["abstained"] = confidence < self._min_probability
        if self._threshold is not None:
            return outputs | {"chosen": outputs["chosen"] & ~outputs["abstained"][:, tf.newaxis]}
        return outputs | {"label": tf.where(outputs["abstained"], self._abstain_label, outputs["label"])}

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = read_ids(self._encoder.config, input_ids, input_mask, segment_ids)
        return self._outputs(_logits(self._encoder, batch))

    def _outputs(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        if self._labels is None:
            return {"score": logits[:, 0]}
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits) if self._threshold is None else tf.sigmoid(logits),
        }


class ServedChooser(tf.Module):
    """Selects the best ending of a prompt.

    Args:
      encoder: the encoder with the output layer.
      texts: the reader of input texts.
    """

    def __init__(self, encoder: InferenceEncoder, texts: GraphTextReader) -> None:
        super().__init__(name="chooser")
        self._encoder = encoder
        self._texts = texts

    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures.

        - `serving_default` takes prompt [B] and endings [B, C]. It returns `choice` [B], the index of the best ending,
          or -1 if there are no endings; `probabilities` [B, C]; and `truncated` [B, C]. Empty endings are padding for
          examples with fewer endings; their probability is 0.
        - `token_ids` takes input_ids, input_mask and segment_ids [B, T] of sequences [CLS] prompt [SEP] ending [SEP].
          It returns `score` [B]. A softmax over the scores of an example gives its probabilities.
        """
        texts = dict(zip(CHOICE_INPUTS, (TEXTS, TEXT_LISTS), strict=True))
        return {
            "serving_default": signature(self._from_texts, **texts),
            "token_ids": signature(self._from_ids, **IDS),
        }

    def _from_texts(self, prompt: tf.Tensor, endings: tf.Tensor) -> dict[str, tf.Tensor]:
        check_equally_many(prompt=prompt, endings=endings)
        shape = tf.shape(endings)
        is_ending = tf.strings.length(endings) > 0
        prompts = tf.boolean_mask(tf.repeat(prompt[:, tf.newaxis], shape[1], axis=1), is_ending)
        batch, truncated = self._texts.read(prompts, tf.boolean_mask(endings, is_ending))
        positions = tf.where(is_ending)
        shape = tf.cast(shape, tf.int64)
        scores = tf.scatter_nd(positions, _logits(self._encoder, batch)[:, 0], shape)
        scores = tf.where(is_ending, scores, scores.dtype.min)
        probabilities = tf.where(is_ending, tf.nn.softmax(scores), 0.0)
        any_ending = tf.reduce_any(is_ending, axis=1)
        # tf.argmax fails without columns, so one column is added.
        best = tf.argmax(tf.pad(scores, [[0, 0], [0, 1]], constant_values=scores.dtype.min), 1, tf.int32)
        return {
            "choice": tf.where(any_ending, best, -1),
            "probabilities": probabilities,
            "truncated": tf.scatter_nd(positions, truncated, shape),
        }

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = read_ids(self._encoder.config, input_ids, input_mask, segment_ids)
        return {"score": _logits(self._encoder, batch)[:, 0]}


def _may_name_input(column: str) -> bool:
    """Returns True if TensorFlow accepts a column name as an input name."""
    is_name = column.isascii() and column.isidentifier() and not keyword.iskeyword(column)
    return is_name and not column.startswith("_") and column != "self"


def exportable_chooser(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a multiple-choice run."""
    model, _ = run.restored(ClassifierModel, 1)
    served = ServedChooser(run.encoder(model), GraphTextReader(run.tokenizer, run.max_seq_length))
    settings = TextSettings(inputs=CHOICE_INPUTS, problem="choice", labels=None, max_seq_length=run.max_seq_length)
    return run.exportable(served, model, settings=settings)


def exportable_classifier(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a run on a GLUE task or on your own data.

    The inputs of the task "text" have the names of the training columns.
    """
    definition, labels = DEFINITIONS.get(run.settings["task"]), run.labels
    if definition:
        problem, labels = "classification" if definition.labels else "regression", definition.labels
        inputs = TEXT_INPUTS[: 1 if definition.text_b is None else 2]
    else:
        problem, second = run.settings["problem"], run.settings.get("text_b_column")
        columns = [run.settings.get("text_column", ""), *([second] if second else [])]
        inputs = columns if all(map(_may_name_input, columns)) else TEXT_INPUTS[: len(columns)]
    model, _ = run.restored(ClassifierModel, len(labels) if labels else 1, problem)
    for name in ("output_weights", "output_bias"):  # the scores are in the units of the training data
        variable = getattr(model.head, name)
        variable.assign(class_names.as_answered(name, variable.numpy(), run.directory))
    names = labels and list(labels)
    settings = TextSettings(inputs=list(inputs), problem=problem, labels=names, max_seq_length=run.max_seq_length)
    settings |= LongDocuments.from_flags(run.settings).record
    if problem == "multi_label":
        settings["threshold"] = run_record.label_threshold(run.directory)
    confidence, config = ConfidenceConfig.from_flags(run.flags), run.export_config
    if config.min_probability is not None:
        changes = {name: value for name in ("min_probability", "abstain_label") if (value := getattr(config, name))}
        confidence = ConfidenceConfig(**changes)
    confidence.check_labels(labels or ())
    settings |= confidence.record
    return run.exportable(ServedClassifier(run.encoder(model), run.tokenizer, settings), model, labels, settings)
