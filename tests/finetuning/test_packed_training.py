"""Training gives the same result with packed rows and padded sequences, with any number of parts and any shape."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import DTYPES
from bert_tf.distribution import strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.finetuning import training_batches
from bert_tf.finetuning.feature_sets import BatchSampler, FeatureSet
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.finetuning.similarity_model import SimilarityModel, batch_loss
from bert_tf.model import heads
from bert_tf.model.dropout import fold_in
from bert_tf.optimization import OptimizerConfig
from bert_tf.sentence_vectors import VectorConfig
from bert_tf.sequences.placement import Packer, Shape
from bert_tf.training.settings import Compilation, Shapes, TrainingConfig
from bert_tf.training.step import micro_batches
from tests.conftest import assert_close, eagerly, tiny_config, train_steps, trainer_of, without_dropout

BATCH, STEPS, LENGTH = 8, 3, 20
# Too few rows for most batches, so several spill micro-batches are needed.
NARROW = {1: Shape(2, 0, 1, 0, 8), 2: Shape(2, 0, 2, 0, 8)}


@pytest.fixture(autouse=True)
def no_dropout_before_the_output_layer(monkeypatch):
    monkeypatch.setattr(heads, "CLASSIFIER_DROPOUT", 0.0)  # packed rows have the examples in another order


def features(count=32, choices=1, has_scores=False):
    rng = np.random.default_rng(4)
    lengths = rng.integers(3, LENGTH + 1, count * choices)
    sequences = [(rng.integers(5, 40, n).tolist(), [0] * (n - 1) + [1]) for n in lengths]
    values = {"label_ids": rng.integers(0, 2, count), "text_ids": rng.integers(0, 60, (count, choices))}
    values = {name: rows.astype(np.int32) for name, rows in values.items()}
    values |= {"scores": rng.uniform(-1, 1, count).astype(np.float32)} if has_scores else {}
    return FeatureSet.from_sequences(sequences, values, choices)


def model_of(choices, pooling, has_dropout, **options):
    config = tiny_config(num_hidden_layers=1)
    config = config if has_dropout else without_dropout(config)
    if pooling:
        return SimilarityModel(config, VectorConfig(pooling), 20.0, True, **options)
    return ClassifierModel(config, 1 if choices > 1 else 2, choices=choices, **options)


def prepared(
    packs,
    *,
    replicas=1,
    parts=1,
    narrow=False,
    varies=False,
    dtype="float32",
    recompute=False,
    choices=1,
    clips="all",
    compilation=Compilation.NONE,
    pooling=None,
    has_scores=False,
    has_dropout=False,
):
    """Returns a trainer, always with the same weights, and the same examples as a sampler and as batches."""
    strategy = strategies.build_strategy(DistributionConfig("mirrored" if replicas > 1 else "one_device"))
    config = TrainingConfig(
        "unused",
        OptimizerConfig(1e-2, 10, clip_gradients=clips) if clips != "all" else OptimizerConfig(1e-2, 10),
        BATCH,
        dtype=dtype,
        gradient_accumulation_steps=parts,
        gradient_checkpointing=recompute,
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = model_of(choices, pooling, has_dropout, dtype=DTYPES[dtype], gradient_checkpointing=recompute)
    trainer = trainer_of(model, config, strategy, compilation)
    buckets = [8, 16, LENGTH] if varies else [LENGTH]
    sampler = BatchSampler(features(choices=choices, has_scores=has_scores), BATCH, 1, buckets)
    packer = None
    if packs:
        pipelines, shape = strategies.input_pipelines(strategy), NARROW[choices] if narrow else None
        width = 12 if varies else None
        packer = Packer(replicas // pipelines, parts, shape, hidden_size=width, shares=clips == "all")
    shapes = Shapes.ONE if narrow else Shapes.ANY
    pipeline = functools.partial(training_batches.batches, sampler, packer, 0, shapes, has_positions=bool(pooling))
    return trainer, sampler, strategies.batches(strategy, pipeline)


def losses_and_weights(packs, **options):
    """Trains a few steps. Returns the losses, the weights, and the first moments after the first step."""
    trainer, sampler, batches = prepared(packs, **options)
    means = [train_steps(trainer, batches, 1)]
    moments = [moment.numpy() for moment in trainer.optimizer.means]
    means += [train_steps(trainer, batches, 1) for _ in range(STEPS - 1)]
    for step, each in enumerate(means):  # tokens without padding
        assert each["tokens"] == sampler.features.tokens[sampler.examples(step)].sum()
    if options.get("compilation") is Compilation.STEP:
        replicas = options.get("replicas", 1)
        compiled, branches = (trainer._replica_gradients, trainer._update), 2 if options.get("pooling") else 1
        assert [function.experimental_get_tracing_count() for function in compiled] == [branches * replicas, replicas]
    return [each["loss"] for each in means], [variable.numpy() for variable in trainer.model.variables], moments


def check_against_padded_sequences(**options):
    padded = {name: value for name, value in options.items() if name not in ("narrow", "parts", "compilation")}
    (losses, weights, _), (padded_losses, padded_weights, _) = (
        losses_and_weights(True, **options),
        losses_and_weights(False, **padded),
    )
    assert_close(losses, padded_losses, 1e-5)
    for packed, expected in zip(weights, padded_weights, strict=True):
        assert_close(packed, expected, 1e-4)


@pytest.mark.eager
@pytest.mark.parametrize(
    "options", [{"varies": True}, {"choices": 2, "parts": 2}, {"narrow": True, "parts": 2, "choices": 2}], ids=str
)
def test_losses_and_weights_are_those_of_padded_sequences(options):
    check_against_padded_sequences(**options)


@pytest.mark.plain
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compilation": Compilation.STEP, "parts": 2, "recompute": True},
        {"compilation": Compilation.STEP, "replicas": 2, "clips": "per_replica"},
    ],
    ids=str,
)
def test_a_graph_of_one_shape_computes_what_has_no_room_in_spill_micro_batches(options):
    check_against_padded_sequences(narrow=True, **options)


def assert_same_gradients(gradients, expected):
    """Compares gradients with a relative tolerance. The gradients of the keys' biases are rounding errors."""
    largest = max(np.abs(other).max() for other in expected)
    for gradient, other in zip(gradients, expected, strict=True):
        assert_close(gradient, other, 1e-5 * max(np.abs(other).max(), 1e-2 * largest))


@pytest.mark.plain
@pytest.mark.parametrize(
    ("pooling", "options"),
    [
        ("mean", {"parts": 4}),
        ("max", {"varies": True}),
        ("cls", {"narrow": True, "parts": 2}),
        ("mean", {"narrow": True, "compilation": Compilation.STEP}),
        ("pooled", {"replicas": 2}),
        ("mean", {"parts": 2, "choices": 3}),
        ("mean", {"replicas": 2, "has_scores": True}),
        pytest.param("mean", {"replicas": 2, "parts": 2, "narrow": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_vectors_are_compared_with_those_of_all_parts_and_replicas(pooling, options):
    options = {"pooling": pooling, "choices": 2} | options
    losses, weights, moments = losses_and_weights(True, **options)
    data = {name: options.get(name, False) for name in ("choices", "varies", "has_scores")}
    expected, expected_weights, expected_moments = losses_and_weights(False, pooling=pooling, **data)
    assert_close(losses, expected, 1e-5)
    for variable, other in zip(weights, expected_weights, strict=True):
        assert_close(variable, other, 1e-4)
    assert_same_gradients(moments, expected_moments)  # after one step, a moment is a gradient times a factor


@pytest.mark.plain
@pytest.mark.parametrize("compilation", [Compilation.NONE, Compilation.STEP])
def test_both_passes_over_a_part_draw_the_same_dropout(compilation):
    options = {"parts": 2, "pooling": "mean", "choices": 2, "compilation": compilation, "has_dropout": True}
    trainer, _, batches = prepared(True, **options)
    batch, model, arguments = next(batches), trainer.model, (2, False)

    @tf.function(jit_compile=compilation is Compilation.STEP)
    def in_one_pass(seed):
        parts = micro_batches._split(batch, 2)
        with tf.GradientTape() as tape:
            values = [model.collect({name: x[n] for name, x in parts.items()}, BATCH, fold_in(seed, n)) for n in (0, 1)]
            loss = batch_loss(tf.nest.map_structure(tf.add, *values), 20.0, True)
        return tape.gradient(loss, [variable.value for variable in model.trained_variables])

    seed = tf.constant([1, 2])
    totals = micro_batches.totals(model, batch) | trainer._loss_of_all(batch, seed, *arguments)
    gradients = trainer._replica_gradients(batch, totals, seed, *arguments)[1]
    assert_same_gradients(gradients, in_one_pass(seed))
    with pytest.raises(AssertionError):
        assert_same_gradients(gradients, in_one_pass(seed + 1))


@pytest.mark.slow  # 15 s
@pytest.mark.plain
@pytest.mark.parametrize("options", [{}, {"narrow": True, "parts": 2}, {"clips": "per_replica"}], ids=str)
def test_replicas_agree_with_padded_sequences(options):
    check_against_padded_sequences(replicas=2, **options)


def test_compiled_kernels_recomputation_and_parts_in_bfloat16_agree_with_padded_sequences():
    options = {"parts": 2, "dtype": "bfloat16", "recompute": True}
    losses, *_ = losses_and_weights(True, **options)
    with eagerly():
        assert_close(losses, losses_and_weights(False, dtype="bfloat16")[0], 2e-2)


@pytest.mark.plain
def test_one_graph_divides_batches_of_all_lengths_into_parts():
    losses, *_ = losses_and_weights(True, varies=True, parts=2)
    with eagerly():
        assert_close(losses, losses_and_weights(False, varies=True)[0], 1e-5)
