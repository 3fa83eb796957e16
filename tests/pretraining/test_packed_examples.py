"""Packed batches of the input pipeline contain the same examples as padded batches."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.pretraining import input_pipeline, packed_examples
from bert_tf.runtime.errors import InputError
from bert_tf.sequences.example_format import parse, pretraining_features
from bert_tf.sequences.placement import Packer
from bert_tf.training.errors import explain_data
from tests.pretraining.test_record_shards import find
from tests.programs import serialize

LENGTH, PREDICTIONS, BATCH = 16, 4, 8
FEATURES = pretraining_features(LENGTH, PREDICTIONS)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 16)
    rng = np.random.default_rng(2)
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for number in range(40):
            size = LENGTH if number % 9 == 0 else rng.integers(3, LENGTH // 2)
            is_token = np.arange(LENGTH) < size
            ids = np.where(is_token, rng.integers(5, 30, LENGTH), 0)
            ids[0] = number + 1
            count = rng.integers(0, min(PREDICTIONS, size))
            is_used = np.arange(PREDICTIONS) < count
            values = {
                "input_ids": ids,
                "input_mask": is_token.astype(int),
                "segment_ids": (is_token & (np.arange(LENGTH) > 2)).astype(int),
                "masked_lm_positions": np.where(is_used, np.arange(1, PREDICTIONS + 1), 0),
                "masked_lm_ids": np.where(is_used, 7, 0),
                "masked_lm_weights": is_used.astype(float),
                "next_sentence_labels": [number % 2],
            }
            writer.write(serialize(FEATURES, values))
    return find(tmp_path / "a.tfrecord", length=LENGTH, predictions=PREDICTIONS)


def batches(shards, packer, *, start=0, count=6, context=None, seed=1):
    dataset = input_pipeline.training_batches(shards, FEATURES, BATCH, seed, start, context, packer=packer)
    return list(dataset.take(count).as_numpy_iterator())


def example(ids, segments, positions, labels, weights, next_sentence):
    predictions = [pair for *pair, weight in zip(positions, labels, weights, strict=True) if weight]
    return str([ids.tolist(), segments.tolist(), sorted(predictions), next_sentence])


def padded_examples(batch):
    """Returns the examples of a padded batch."""
    names = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights", "next_sentence_labels")
    return {
        example(batch["input_ids"][i, :size], batch["segment_ids"][i, :size], *(batch[name][i] for name in names))
        for i, size in enumerate(batch["input_mask"].sum(axis=1))
    }


def packed_examples_of(part):
    """Returns the examples of a replica's packed part: one micro-batch, and spill micro-batches if needed."""
    groups = [(part, 1), (part["spill"], len(part["spill_is_used"]))] if "spill" in part else [(part, 1)]
    found = set()
    for group, count in groups:
        split = {name: x.reshape(count, -1) for name, x in group.items() if not name.startswith("spill")}
        for number in range(count):
            found |= _of_micro_batch({name: x[number] for name, x in split.items()})
    return found


def _of_micro_batch(arrays):
    found = set()
    positions = arrays["masked_lm_positions"]
    for i, (start, size) in enumerate(zip(arrays["sequence_starts"], arrays["sequence_lengths"], strict=True)):
        span, inside = slice(start, start + size), (positions >= start) & (positions < start + size)
        predictions = [arrays[name][inside] for name in ("masked_lm_ids", "masked_lm_weights")]
        tokens = arrays["input_ids"][span], arrays["segment_ids"][span]
        if size:
            found.add(example(*tokens, positions[inside] - start, *predictions, arrays["next_sentence_labels"][i]))
    return found


def context(pipeline, of=1, replicas=1):
    return tf.distribute.InputContext(of, pipeline, replicas)


def packer_of(shards, replicas, fixed):
    packer = Packer(replicas)
    sample = batches(shards, None, count=10) if fixed else ()
    return packer.with_shape(map(packed_examples.sizes, sample), LENGTH, PREDICTIONS) if fixed else packer


@pytest.mark.parametrize("fixed", [False, True])
def test_each_batch_has_the_examples_of_the_padded_batch(shards, fixed):
    packer = packer_of(shards, 1, fixed)
    padded, packed = batches(shards, None), batches(shards, packer)
    for expected, found in zip(padded, packed, strict=True):
        assert packed_examples_of(found) == padded_examples(expected)
        assert found["input_ids"].shape[0] < BATCH
    np.testing.assert_equal(batches(shards, packer, start=2, count=4), packed[2:])


@pytest.mark.parametrize("fixed", [False, True])
def test_replicas_share_the_examples_of_their_pipeline(shards, fixed):
    packer = packer_of(shards, 2, fixed)
    padded = batches(shards, None, count=4)
    packed = batches(shards, packer, count=8, context=context(0, replicas=2))
    for step, expected in enumerate(padded):
        first, second = (packed_examples_of(part) for part in packed[2 * step : 2 * step + 2])
        assert first | second == padded_examples(expected)
        assert fixed or len(first) == len(second)


def test_each_pipeline_packs_its_own_part(shards):
    for pipeline in range(2):
        own = batches(shards, Packer(), count=2, context=context(pipeline, of=2, replicas=2))
        alone = batches(shards, None, count=2, context=context(pipeline, of=2, replicas=2))
        for packed, padded in zip(own, alone, strict=True):
            assert packed_examples_of(packed) == padded_examples(padded)


def test_each_replica_keeps_its_examples_if_it_clips_its_own_gradient(shards):
    options = {"count": 8, "context": context(0, replicas=2)}
    packed, padded = (batches(shards, packer, **options) for packer in (Packer(2, shares=False), None))
    assert [packed_examples_of(part) for part in packed] == [padded_examples(part) for part in padded]


def test_shapes_are_static_if_there_is_only_one(shards):
    for fixed in (False, True):
        dataset = input_pipeline.training_batches(shards, FEATURES, BATCH, 1, 0, packer=packer_of(shards, 1, fixed))
        shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
        assert all(shape.is_fully_defined() for shape in shapes) == fixed
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize(
    ("name", "first", "value", "problem"),
    [
        ("input_mask", 1, 0, "an input_mask with a 0 before the last 1. Pass --pad_to_max_seq_length"),
        ("masked_lm_weights", slice(None), 0, "a batch whose masked_lm_weights are all 0, .* Regenerate the file"),
    ],
)
def test_records_that_cannot_be_packed_are_refused(shards, tmp_path, name, first, value, problem):
    (record,) = tf.data.TFRecordDataset(shards[0].path).take(1)
    values = {name: np.array(x[0], ndmin=1) for name, x in parse(FEATURES, [record]).items()}
    values[name][first] = value
    with tf.io.TFRecordWriter(str(tmp_path / "b.tfrecord")) as writer:
        for _ in range(BATCH):
            writer.write(serialize(FEATURES, values))
    with_holes = find(tmp_path / "b.tfrecord", length=LENGTH, predictions=PREDICTIONS)
    with pytest.raises(InputError, match=f"^b has {problem}.$"), explain_data(lambda: "b"):
        batches(with_holes, Packer())
