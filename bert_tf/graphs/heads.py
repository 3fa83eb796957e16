"""The served model of a run with several output layers.

Axis letters: B batch, T tokens, C classes.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from bert_tf.finetuning.multi_head_model import MultiHeadModel
from bert_tf.graphs.encoder import InferenceEncoder, in_parts
from bert_tf.graphs.exportable import Exportable, FinishedRun, plain_logits
from bert_tf.graphs.packing import TokenBatch
from bert_tf.graphs.text_reader import IDS, TEXTS, GraphTextReader, Signature, read_ids, signature
from bert_tf.runtime.errors import InputError
from bert_tf.serving.answering import TEXT_INPUTS


class ServedHeads(tf.Module):
    """A classifier of texts with several output layers.

    Args:
      encoder: the encoder.
      model: the model with the output layers.
      heads: maps the name of each output layer to its classes.
      texts: the reader of the input texts.
      inputs: the names of the inputs: one, or two for pairs.
    """

    def __init__(
        self,
        encoder: InferenceEncoder,
        model: MultiHeadModel,
        heads: Mapping[str, Sequence[str]],
        texts: GraphTextReader,
        inputs: Sequence[str],
    ) -> None:
        super().__init__(name="heads")
        self._encoder = encoder
        self._layers = {
            name: [tf.Variable(v.numpy(), trainable=False, name=v.path) for v in head.weights]
            for name, head in model.heads.items()
        }
        self._classes = {name: tf.constant(list(classes)) for name, classes in heads.items()}
        self._texts = texts
        self._inputs = inputs

    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures.

        - `serving_default` takes texts [B] and, for pairs, second texts [B]. For each output layer, it returns the
          label `NAME` [B], `NAME_probabilities` [B, C] and `NAME_names` [B, C], which is the same in all rows. It also
          returns `truncated` [B], whether the text was truncated.
        - `token_ids` takes input_ids, input_mask and segment_ids [B, T]. It returns `NAME_logits` [B, C] for each
          output layer.
        """
        return {
            "serving_default": signature(self._from_texts, **dict.fromkeys(self._inputs, TEXTS)),
            "token_ids": signature(self._from_ids, **IDS),
        }

    def _from_texts(self, text_a: tf.Tensor, text_b: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        batch, truncated = self._texts.read(text_a, text_b, self._inputs)
        outputs = {"truncated": truncated}
        for name, logits in self._logits(batch).items():
            classes = self._classes[name]
            outputs[name] = tf.gather(classes, tf.argmax(logits, axis=-1))
            outputs[f"{name}_probabilities"] = tf.nn.softmax(logits)
            outputs[f"{name}_names"] = tf.repeat(classes[tf.newaxis], tf.shape(logits)[0], axis=0)
        return outputs

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        logits = self._logits(read_ids(self._encoder.config, input_ids, input_mask, segment_ids))
        return {f"{name}_logits": values for name, values in logits.items()}

    def _logits(self, batch: TokenBatch) -> dict[str, tf.Tensor]:
        def joined(subset: TokenBatch) -> tf.Tensor:
            pooled = self._encoder.pooled_output(subset)
            logits = [tf.matmul(pooled, weights, transpose_b=True) + bias for weights, bias in self._layers.values()]
            return tf.concat(logits, axis=-1)

        sizes = [weights.shape[0] for weights, _ in self._layers.values()]
        return dict(zip(self._layers, tf.split(in_parts(joined, batch, sum(sizes)), sizes, axis=-1), strict=True))


def exportable(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a run whose task has a `MultiHeadModel`.

    The `input_settings` of the task must contain `heads`, the classes of each output layer, and, if the examples are
    pairs, `is_pair`.

    Raises:
      InputError: if the run does not record `heads`.
    """
    heads = run.settings.get("heads")
    if not heads:
        task = run.settings["task"]
        raise InputError(
            f"--do_export: the task {task!r} does not record 'heads' in its input_settings. Add 'heads', or pass an "
            "export function to registry.register."
        )
    model, _ = run.restored(MultiHeadModel, heads)
    inputs = TEXT_INPUTS if run.settings.get("is_pair") else ("text",)
    encoder = InferenceEncoder(model.encoder, run.export_config.dtype)
    served = ServedHeads(encoder, model, heads, GraphTextReader(run.tokenizer, run.max_seq_length), inputs)
    return Exportable(served, plain_logits(model), run.tokenizer, run.max_seq_length)
