import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.models import NO_TAG, ClassifierModel, SpanModel, TokenModel
from bert_tf.model.heads import class_losses, log_likelihood_loss, span_loss
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.training.evaluation import BatchEvaluator
from tests.conftest import (
    assert_close,
    golden_names,
    golden_path,
    int32,
    is_compiled,
    restored,
    tiny_config,
    with_large_head,
    without_dropout,
)


def golden_model(name):
    directory = golden_path(f"model/{name}")
    model = PretrainingModel(BertConfig.from_json_file(str(directory / "bert_config.json")))
    return restored(model, directory / "bert_model.ckpt"), directory


@pytest.mark.golden
@pytest.mark.parametrize("name", golden_names("model/*/outputs.npz"))
def test_variables_outputs_and_losses_equal_the_original_code(name):
    model, directory = golden_model(name)
    batch, expected = int32(np.load(directory / "inputs.npz")), np.load(directory / "outputs.npz")
    sizes = [[variable.path, list(variable.shape)] for variable in model.variables]
    expected_sizes = json.loads((directory / "variables.json").read_text())
    assert dict(sizes) == dict(expected_sizes)
    assert [path for path, _ in sizes if "bert" in path] == [path for path, _ in expected_sizes if "bert" in path]

    inputs = batch["input_ids"], batch["input_mask"], batch["segment_ids"]
    output, ids_only = model.encoder(*inputs), model.encoder(batch["input_ids"])
    assert_close(output.embedding_output, expected["embedding_output"], 5e-5)
    for i, layer in enumerate(output.all_encoder_layers):
        assert_close(layer, expected[f"encoder_layer_{i}"], 5e-5, f"layer {i}")
    if "attention_probs_layer_0" in expected:
        assert_close(output.attention_probs[0], expected["attention_probs_layer_0"], 5e-5)
    for kind in ("sequence_output", "pooled_output"):
        assert_close(getattr(output, kind), expected[kind], 5e-5)
        assert_close(getattr(ids_only, kind), expected[f"nomask_{kind}"], 5e-5)
    one_hot = restored(BertEncoder(model.encoder.config, use_one_hot_embeddings=True), directory / "bert_model.ckpt")
    assert_close(one_hot(*inputs).sequence_output, expected["sequence_output"], 5e-5)

    table = model.encoder.embedding_table
    logits = model.masked_lm(output.sequence_output, batch["masked_lm_positions"], table)
    assert logits.shape == (*batch["masked_lm_positions"].shape, model.encoder.config.vocab_size)
    log_probs = tf.reshape(tf.nn.log_softmax(logits), expected["mlm_log_probs"].shape)
    assert_close(log_probs, expected["mlm_log_probs"], 5e-5)
    per_example = log_likelihood_loss(logits, batch["masked_lm_ids"])
    assert_close(tf.reshape(per_example, [-1]), expected["mlm_per_example_loss"], 5e-5)
    next_logits = model.next_sentence(output.pooled_output)
    assert_close(tf.nn.log_softmax(next_logits), expected["nsp_log_probs"], 5e-5)

    loss, metrics = model.loss(batch, model.totals(batch), None)
    means = {name: float(total / weight) for name, (total, weight) in metrics.items()}
    assert_close(loss, expected["total_loss"], 5e-5)
    assert_close(means["masked_lm_loss"], expected["mlm_loss"], 5e-5)
    assert_close(means["next_sentence_loss"], expected["nsp_loss"], 5e-5)


@pytest.mark.golden
@pytest.mark.parametrize("name", golden_names("model/*/eval_metrics.json"))
def test_streaming_evaluation_metrics_equal_the_original_code(name):
    model, directory = golden_model(name)
    expected = json.loads((directory / "eval_metrics.json").read_text())
    batches = int32(np.load(directory / "eval_batches.npz"))
    evaluator = BatchEvaluator(model, build_strategy(DistributionConfig()))
    count = len(expected["batch_total_loss"])
    means = evaluator.evaluate(lambda context: tf.data.Dataset.from_tensor_slices(batches), count)
    for metric, value in expected["metrics"].items():
        assert_close(means[metric], value, 1e-5, metric)
    assert_close(means["loss"], np.mean(expected["batch_total_loss"]), 1e-5)


@pytest.mark.golden
def test_the_classifier_equals_the_original_code():
    directory = golden_path("heads")
    config = BertConfig.from_json_file(str(directory / "bert_config.json"))
    batch, expected = int32(np.load(directory / "classifier_inputs.npz")), np.load(directory / "classifier_outputs.npz")
    real = np.asarray(batch.pop("is_real_example"), bool).reshape(-1)
    batch["label_ids"] = batch["label_ids"].reshape(-1)
    model = ClassifierModel(config, expected["logits"].shape[1])
    restored(model, directory / "classifier.ckpt", may_be_new="")
    outputs = model.predict(batch)
    # Every score in a row of padding gets -10000. At this size, the spacing of float32 is 1e-3.
    has_tokens = batch["input_mask"].any(axis=1)
    for name in ("logits", "probabilities", "per_example_loss"):
        assert_close(outputs[name][has_tokens], expected[name][has_tokens], 5e-5, name)
    assert_close(outputs["logits"], expected["logits"], 1e-2)
    loss, metrics = model.loss(batch, model.totals(batch), None)
    assert_close(loss, expected["loss"], 1e-2)
    correct = np.argmax(outputs["logits"], axis=-1) == batch["label_ids"]
    assert_close(correct[real].mean(), expected["metric_eval_accuracy"], 1e-6)
    assert_close(outputs["per_example_loss"].numpy()[real].mean(), expected["metric_eval_loss"], 5e-5)
    assert float(metrics["accuracy"][0]) == correct.sum()


@pytest.mark.golden
def test_spans_equal_the_original_code():
    directory = golden_path("heads")
    config = BertConfig.from_json_file(str(directory / "bert_config.json"))
    model = restored(SpanModel(without_dropout(config)), directory / "squad.ckpt", may_be_new="")
    batch, expected = int32(np.load(directory / "squad_inputs.npz")), np.load(directory / "squad_outputs.npz")
    outputs = model.predict(batch)
    assert_close(outputs["start_logits"], expected["start_logits"], 5e-5)
    assert_close(outputs["end_logits"], expected["end_logits"], 5e-5)
    loss, _ = model.loss(batch, model.totals(batch), tf.constant([1, 2]))
    assert_close(loss, expected["train_total_loss_dropout0"], 5e-5)
    assert not any(variable.path.startswith("bert/pooler") for variable in model.trained_variables)


@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_compiled_loss_and_its_gradient_are_the_plain_ones(shape):
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(0, 9, (*shape, 33)), tf.float32)
    labels = tf.constant(rng.integers(0, 33, shape), tf.int32)
    upstream = tf.constant(rng.normal(size=shape), tf.float32)

    def with_gradient(logits, labels, upstream):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = log_likelihood_loss(logits, labels)
        return loss, tape.gradient(loss, logits, upstream)

    compiled = tf.function(with_gradient)
    assert is_compiled(compiled, logits, labels, upstream)
    for found, plain in zip(compiled(logits, labels, upstream), with_gradient(logits, labels, upstream), strict=True):
        assert_close(found, plain, 1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError):
        compiled(logits, tf.fill(shape, 33), upstream)


def test_only_the_pretraining_heads_are_initialized_as_the_config_says():
    config = tiny_config().replace(initializer_range=10.0)
    pretrained = PretrainingModel(config).next_sentence.output_weights
    assert np.abs(pretrained.value).max() > 1
    for head in (ClassifierModel(config, 3).head, SpanModel(config).head):
        assert 0.001 < np.abs(head.output_weights.value).max() <= 0.04  # cut off at two standard deviations


def test_left_to_right_objective_predicts_each_right_neighbour_also_of_masked_tokens():
    model = PretrainingModel(tiny_config(), objective="ltr")
    ids = np.array([[5, 6, 7, 8, 0, 0], [9, 10, 0, 0, 0, 0]], np.int32)
    batch = {"input_ids": ids, "input_mask": (ids > 0).astype(np.int32), "segment_ids": np.zeros_like(ids)}
    loss, metrics = model.loss(batch, model.totals(batch), None)
    assert float(metrics["masked_lm_loss"][1]) == 4  # three neighbours in the first row, one in the second
    output = model.encoder(ids, batch["input_mask"], batch["segment_ids"]).sequence_output
    positions = np.array([[0, 1, 2], [0, 0, 0]], np.int32)
    logits = model.masked_lm(output, positions, model.encoder.embedding_table)
    per_token = log_likelihood_loss(logits, np.array([[6, 7, 8], [10, 10, 10]], np.int32)).numpy()
    assert_close(loss, (per_token[0].sum() + per_token[1, 0]) / 4, 1e-4)
    assert not any(variable.path.startswith("bert/pooler") for variable in model.trained_variables)
    masked = ids.copy()
    masked[0, [1, 3]] = 4
    batch |= {
        "input_ids": masked,
        "masked_lm_positions": np.array([[1, 3, 0], [0, 0, 0]], np.int32),
        "masked_lm_ids": np.array([[6, 8, 0], [0, 0, 0]], np.int32),
        "masked_lm_weights": np.array([[1, 1, 0], [0, 0, 0]], np.float32),
    }
    assert_close(model.loss(batch, model.totals(batch), None)[0], loss, 1e-6)


def test_positions_outside_the_sequence_cost_nothing():
    logits = tf.random.stateless_normal([2, 5], [1, 2])
    inside = span_loss(logits, logits, tf.constant([1, 1]), tf.constant([2, 2]))
    outside = span_loss(logits, logits, tf.constant([1, 7]), tf.constant([2, 7]))
    assert_close(outside[0], inside[0], 1e-6)
    assert float(outside[1]) == 0


def test_regression_and_multi_label_losses():
    config = tiny_config()
    batch = {name: np.ones((2, 4), np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    regression = ClassifierModel(config, 1, "regression")
    batch["label_ids"] = np.array([1.0, 3.0], np.float32)
    score = regression.predict(batch)["score"].numpy()
    assert_close(regression.loss(batch, regression.totals(batch), None)[0], ((score - [1, 3]) ** 2).mean(), 1e-5)
    several = ClassifierModel(config, 3, "multi_label")
    batch["label_ids"] = np.array([[1, 0, 1], [0, 0, 0]], np.float32)
    p = several.predict(batch)["probabilities"].numpy()
    expected = -np.where(batch["label_ids"] == 1, np.log(p), np.log(1 - p)).mean()
    assert_close(several.loss(batch, several.totals(batch), None)[0], expected, 1e-5)


def test_weights_of_classes_divide_the_loss_and_weights_of_examples_leave_the_divisor_as_keras_does():
    batch = {"input_ids": np.arange(8, dtype=np.int32).reshape(2, 4) % 2 + 1, "input_mask": np.ones((2, 4), np.int32)}
    batch |= {"segment_ids": np.zeros((2, 4), np.int32), "label_ids": np.array([0, 1], np.int32)}
    model = ClassifierModel(tiny_config(), 2, class_weights=[1.0, 3.0])
    losses = model.predict(batch)["per_example_loss"].numpy()
    assert_close(model.loss(batch, model.totals(batch), None)[0], (losses[0] + 3 * losses[1]) / 4, 1e-6)
    model = ClassifierModel(tiny_config(), 2)
    batch["sample_weights"] = np.array([0.5, 3.0], np.float32)
    judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = judge(batch["label_ids"], model.predict(batch)["logits"], sample_weight=batch["sample_weights"])
    assert_close(model.loss(batch, model.totals(batch), None)[0], expected, 1e-6)


LOSS_OPTIONS = (
    {"label_smoothing": 0.1},
    {"focal_gamma": 2.0},
    {"label_smoothing": 0.3, "focal_gamma": 0.5},
    {"positive_weights": [1.0, 3.0, 0.5], "label_smoothing": 0.2, "focal_gamma": 1.5},
)


def numpy_losses(logits, labels, label_smoothing=0.0, focal_gamma=0.0, positive_weights=None):
    """Returns the losses by the formulas of the papers, in float64."""
    logits = np.array(logits, np.float64)
    if labels.dtype == np.int32:
        p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        q = (1 - label_smoothing) * np.eye(logits.shape[-1])[labels] + label_smoothing / logits.shape[-1]
        return -(q * (1 - p) ** focal_gamma * np.log(p)).sum(axis=-1)
    p, q = 1 / (1 + np.exp(-logits)), (1 - label_smoothing) * labels + label_smoothing / 2
    yes = np.array(positive_weights or 1) * q * (1 - p) ** focal_gamma * np.log(p)
    return -(yes + (1 - q) * p**focal_gamma * np.log(1 - p)).mean(axis=-1)


@pytest.mark.parametrize("options", LOSS_OPTIONS)
def test_losses_of_classes_are_the_formulas_of_their_papers_in_training_only(options):
    batch = {name: np.arange(8, dtype=np.int32).reshape(2, 4) % 2 + 1 for name in ("input_ids", "input_mask")}
    batch["segment_ids"], rows = np.zeros((2, 4), np.int32), np.array([[1, 0, 1], [0, 0, 0]], np.float32)
    tags = {"tag_ids": np.array([[1, NO_TAG, 2, 0], [0, 0, NO_TAG, 1]], np.int32)}
    for kind, problem, values in (
        (ClassifierModel, {"problem": "multi_label"}, {"label_ids": rows}),
        (ClassifierModel, {}, {"label_ids": np.array([2, 0], np.int32)}),
        (TokenModel, {}, tags),
    )[: 1 if "positive_weights" in options else 3]:
        model = with_large_head(kind(without_dropout(tiny_config()), 3, training_loss=options, **problem))
        (labels,), logits = values.values(), np.array(model.logits(batch))
        is_label = np.ones(len(labels), bool) if kind is ClassifierModel else labels != NO_TAG
        loss = tf.function(lambda inputs, model=model: model.loss(inputs, model.totals(inputs), None)[0])
        inputs = {key: tf.constant(x) for key, x in (batch | values).items()}
        assert_close(loss(inputs), numpy_losses(logits[is_label], labels[is_label], **options).mean(), 1e-5)
        name = "per_example_loss" if kind is ClassifierModel else "loss_sum"
        losses = model.predict(batch | values)[name]
        assert_close(np.sum(losses), numpy_losses(logits[is_label], labels[is_label]).sum(), 1e-5)
    sure = tf.constant([[100.0, -100.0]])
    with tf.GradientTape() as tape:
        tape.watch(sure)
        losses = class_losses(sure, tf.constant([0]), focal_gamma=0.5)
    assert np.isfinite(tape.gradient(losses, sure)).all()


def test_dropout_before_the_classifier_is_fixed_at_a_tenth():
    width = 300
    head = ClassifierModel(tiny_config(hidden_size=width, vocab_size=7), width).head
    head.output_weights.assign(tf.eye(width))  # so that the logits are the output of dropout
    kept = head(tf.ones([200, width]), seed=tf.constant([1, 1])).numpy()
    assert np.mean(kept == 0) == pytest.approx(0.1, abs=0.006)  # five standard deviations
    assert_close(kept[kept != 0], 1 / 0.9, 1e-4)
    assert_close(head(tf.ones([2, width])), 1, 0)


def test_operations_of_a_training_step_are_counted():
    config = tiny_config()
    model = PretrainingModel(config)
    batch = {name: np.ones((4, 10), np.int32) for name in ("input_ids", "input_mask")}
    batch |= {"masked_lm_positions": np.zeros((4, 3), np.int32)}
    batch |= {"masked_lm_ids": np.zeros((4, 3), np.int32), "masked_lm_weights": np.ones((4, 3), np.float32)}
    width, inner, pieces, layers = 12, 20, 41, 2
    # Query, key, value and output; two feed-forward layers; attention scores and weighted sums.
    encoder = layers * 2 * 4 * 10 * (4 * width * width + 2 * width * inner + 2 * 10 * width)
    head = 2 * 4 * 3 * (width * width + width * pieces)
    assert_close(model.encoder.flops(np.full(4, 10)), encoder, 1)
    assert_close(model.flops(batch), 3 * (encoder + head), 1)
