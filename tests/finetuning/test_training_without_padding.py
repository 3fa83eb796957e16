"""Training computes the same with and without padding, in one part or several, in graphs of any shape."""

import functools

import keras
import numpy as np
import pytest

from bert_tf.distribution import strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.finetuning import input_pipeline
from bert_tf.finetuning.feature_sets import BatchSampler, FeatureSet
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.finetuning.row_counts import RowCounts, token_positions
from bert_tf.model import heads
from bert_tf.optimization import OptimizerConfig
from bert_tf.training.loop import Trainer
from bert_tf.training.settings import DTYPES, TrainingConfig
from tests.conftest import assert_close, eagerly, tiny_config, train_steps, without_dropout

BATCH, STEPS = 8, 3


@pytest.fixture(autouse=True)
def no_dropout_before_the_output_layer(monkeypatch):
    monkeypatch.setattr(heads, "CLASSIFIER_DROPOUT", 0.0)  # batches without padding are sorted by length


def features(count=32, longest=20, choices=1):
    rng = np.random.default_rng(4)
    lengths = rng.integers(3, longest + 1, count * choices)
    sequences = [(rng.integers(5, 40, n).tolist(), [0] * (n - 1) + [1]) for n in lengths]
    return FeatureSet.from_sequences(sequences, {"label_ids": rng.integers(0, 2, count).astype(np.int32)}, choices)


def test_positions_are_counted_from_the_start_of_their_part():
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
    assert token_positions(mask, parts=1, rows=8).tolist() == [0, 1, 3, 6, 7, 8, 12, 12]
    assert token_positions(mask, parts=2, rows=4).tolist() == [0, 1, 3, 6, 0, 1, 2, 6]


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_each_part_of_each_step_has_room_for_its_tokens(choices, parts):
    sampler = BatchSampler(features(choices=choices), BATCH, 1, [20], False)
    fixed, exact = (RowCounts(sampler, parts, is_fixed) for is_fixed in (True, False))
    assert fixed.shapes == sorted(fixed.shapes)
    assert fixed.shapes[-1] == (BATCH // parts * choices * 20, 20)
    for step in range(500):
        examples = fixed.arranged(sampler.examples(step))
        assert sorted(examples) == sorted(sampler.examples(step))
        mask = sampler.features.batch(examples, 20)["input_mask"]
        most = mask.reshape(parts, -1).sum(axis=1).max()
        assert exact.of(examples).rows - 16 < most <= exact.of(examples).rows
        fitting = [shape for shape in fixed.shapes if shape.has_room_for(exact.of(examples))]
        assert fixed.of(examples) == (fitting or fixed.shapes[-1:])[0]
        for counts in (fixed, exact):
            short = counts.inputs(mask, counts.of(examples), BATCH).get("short_mask")
            if short is not None:  # has all tokens of the first three quarters of each part
                count = len(short) // parts
                assert short.sum() == mask.reshape(parts, -1, 20)[:, :count].sum()
                assert count == BATCH // parts * 3 // 4 * choices


def losses_and_weights(
    leave_out_padding, *, replicas=1, parts=1, fixed=True, dtype="float32", recompute=False, choices=1
):
    """Trains a few steps from the same weights on the same examples."""
    strategy = strategies.build_strategy(DistributionConfig("mirrored" if replicas > 1 else "one_device"))
    config = TrainingConfig(
        "unused",
        OptimizerConfig(1e-2, 10),
        BATCH,
        dtype=dtype,
        gradient_accumulation_steps=parts,
        gradient_checkpointing=recompute,
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = ClassifierModel(
            without_dropout(tiny_config(num_hidden_layers=1)),
            1 if choices > 1 else 2,
            choices=choices,
            dtype=DTYPES[dtype],
            gradient_checkpointing=recompute,
        )
        trainer = Trainer(model, config, strategy)
    sampler = BatchSampler(features(choices=choices), BATCH, 1, [20] if fixed else [8, 16, 20], not fixed)
    counts = RowCounts(sampler, replicas * parts, fixed) if leave_out_padding else None
    data = input_pipeline.training_data(sampler, STEPS, fixed, row_counts=counts)
    batches = strategies.batches(strategy, functools.partial(data.from_step, 0))
    means = [train_steps(trainer, batches, 1) for _ in range(STEPS)]
    for step, each in enumerate(means):  # tokens without padding
        assert each["tokens"] == sampler.features.tokens[sampler.examples(step)].sum()
    return [each["loss"] for each in means], [variable.numpy() for variable in model.variables]


def check_against_padded_batches(**options):
    (losses, weights), (padded_losses, padded_weights) = (losses_and_weights(flag, **options) for flag in (True, False))
    assert_close(losses, padded_losses, 1e-5)
    for unpadded, padded in zip(weights, padded_weights, strict=True):
        assert_close(unpadded, padded, 1e-4)


@pytest.mark.eager
@pytest.mark.parametrize("options", [{"fixed": False}, {"choices": 2, "parts": 2}], ids=str)
def test_losses_and_weights_are_those_of_padded_batches(options):
    check_against_padded_batches(**options)


@pytest.mark.slow  # 15 s
@pytest.mark.plain
def test_replicas_with_different_numbers_of_tokens_agree_with_padded_batches():
    check_against_padded_batches(replicas=2, fixed=False)


def test_compiled_kernels_recomputation_and_parts_in_bfloat16_agree_with_padded_batches():
    options = {"parts": 2, "dtype": "bfloat16", "recompute": True}
    losses, _ = losses_and_weights(True, **options)
    with eagerly():
        assert_close(losses, losses_and_weights(False, **options)[0], 2e-2)


@pytest.mark.plain
def test_one_graph_divides_batches_of_all_lengths_into_parts():
    losses, _ = losses_and_weights(False, fixed=False, parts=2)
    with eagerly():
        assert_close(losses, losses_and_weights(False, fixed=False)[0], 1e-5)
