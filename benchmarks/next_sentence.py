"""Measures how well a pre-trained model recognises successive sentences, regardless of the fraction of such pairs.

    python -m benchmarks.next_sentence --model=runs/128 --input_file=darwin128.tfrecord [--examples=5500]

The accuracy of `run_pretraining.py --do_eval` depends on the fractions of random pairs in the training data and in the
evaluated data. This program also prints the mean of both classes' accuracies, and the area under the ROC curve, which
does not depend on a threshold either. For both, guessing scores 0.5. The first examples of the file are used.
"""

import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

import bert_tf
from bert_tf import checkpoints
from bert_tf.model.heads import next_sentence_head
from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.runtime import reporting

_MODEL = flags.DEFINE_string("model", None, "Run directory, or checkpoint with a next-sentence head.")
_INPUT_FILE = flags.DEFINE_string("input_file", None, "TFRecords of pre-training examples for evaluation.")
_EXAMPLES = flags.DEFINE_integer("examples", 5500, "Number of examples to classify.", lower_bound=1)
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the examples in tokens.")
_PREDICTIONS = flags.DEFINE_integer("max_predictions_per_seq", 20, "Number of masked positions per example.")

BATCH = 100


def main(_):
    bert = bert_tf.load_model(_MODEL.value)
    head = next_sentence_head(bert.config)
    variables = checkpoints.named_variables([head.output_weights, head.output_bias])
    checkpoints.restore(variables, bert.source, may_be_new="", may_be_ignored=".*", flag_name="--model")

    lengths = (_LENGTH.value, _PREDICTIONS.value)
    shards = record_shards.find_shards(_INPUT_FILE.value, *lengths, bert.config.vocab_size)
    features = record_shards.record_features(shards)

    @tf.function
    def score(batch):  # the log odds of "random" against "next" [B]
        output = bert.encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
        logits = head(output.pooled_output)
        return logits[:, 1] - logits[:, 0]

    scores, labels = [], []
    examples = min(_EXAMPLES.value, sum(shard.records for shard in shards))
    for batch in input_pipeline.training_batches(shards, features, BATCH, None, 0).take(-(-examples // BATCH)):
        scores += score(batch).numpy().tolist()
        labels += batch["next_sentence_labels"].numpy().reshape(-1).tolist()
    scores, labels = np.array(scores[:examples]), np.array(labels[:examples])
    row = {
        "examples": examples,
        "random, %": 100 * labels.mean(),
        "predicted random, %": 100 * (scores > 0).mean(),
        "accuracy, %": 100 * accuracy_score(labels, scores > 0),
        "mean of both classes, %": 100 * balanced_accuracy_score(labels, scores > 0),
        "area under the curve": roc_auc_score(labels, scores),
    }
    print(reporting.table([row]))


if __name__ == "__main__":
    flags.mark_flags_as_required(["model", "input_file"])
    app.run(main)
