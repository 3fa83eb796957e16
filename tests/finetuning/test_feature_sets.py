import types

import numpy as np
import pytest

from bert_tf.finetuning import feature_sets
from bert_tf.finetuning.feature_sets import BatchSampler, FeatureSet
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.task import TaskData
from bert_tf.training.settings import Shapes
from tests.conftest import assert_refused, tiny_config


def features_of(lengths, choices=1):
    """Returns sequences 1, 2, 3... with the given lengths and the last two tokens in segment 1."""
    sequences = [(list(range(1, n + 1)), [0] * (n - 2) + [1] * 2) for n in lengths]
    return FeatureSet.from_sequences(sequences, {"label_ids": np.arange(len(lengths) // choices)}, choices)


def test_batches_are_padded_as_the_release_pads():
    batch = features_of([4, 6, 3]).batch(np.array([2, 1]), 7)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 0]]
    assert batch["input_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]]
    assert batch["segment_ids"].tolist() == [[0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0]]
    assert batch["label_ids"].tolist() == [2, 1]
    assert batch["input_ids"].dtype == batch["segment_ids"].dtype == np.int32


def test_choices_of_an_example_stay_together():
    features = features_of([3, 4, 5, 6], choices=2)
    assert len(features) == 2
    assert features.longest.tolist() == [4, 6]
    batch = features.batch(np.array([1, 0]), 6)
    assert batch["input_mask"].sum(axis=1).tolist() == [5, 6, 3, 4]
    assert batch["label_ids"].tolist() == [1, 0]


def test_values_per_token_are_padded_with_their_own_value():
    features = FeatureSet(
        np.array([5, 6, 7], np.int32),
        np.array([1, 2], np.int32),
        np.array([1, 2], np.int32),
        per_token={"tags": (np.array([1, 2, 3], np.int32), -1)},
    )
    assert features.batch(np.array([0, 1]), 3)["tags"].tolist() == [[1, -1, -1], [2, 3, -1]]
    assert "tags" in features.token_names


_BY_EIGHT = [*range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 512, 64), 500]


@pytest.mark.parametrize(
    ("longest", "shapes", "expected"),
    [(20, Shapes.ANY, [8, 16, 20]), (96, Shapes.ONE, [32, 64, 96]), (500, Shapes.FEW, _BY_EIGHT)],
)
def test_bucket_lengths(longest, shapes, expected):
    assert feature_sets.bucket_lengths(longest, shapes) == expected


def sampler_of(count=100, batch_size=3, seed=1, buckets=(8, 16, 24, 40)):
    lengths = np.random.default_rng(0).integers(3, 40, count)
    return BatchSampler(features_of(lengths), batch_size, seed, buckets)


@pytest.mark.parametrize(("count", "batch_size"), [(100, 3), (64, 32), (100, 32), (7, 10), (50, 5), (1, 4)])
def test_every_epoch_draws_every_example_once(count, batch_size):
    epochs = 6
    sampler = sampler_of(count, batch_size)
    steps = epochs * count // batch_size
    drawn = np.concatenate([sampler.examples(step) for step in range(steps)])
    for epoch in range(epochs):
        # A batch with the end of one epoch and the start of the next has the examples in this order.
        once = np.bincount(drawn[epoch * count : (epoch + 1) * count], minlength=count)
        assert (once == 1).all() or len(drawn) < (epoch + 1) * count
    if count > 10:
        assert not np.array_equal(drawn[:count], drawn[count : 2 * count])


def test_batches_are_a_function_of_seed_and_step():
    in_order = [sampler_of().examples(step).tolist() for step in range(40)]
    sampler = sampler_of()
    assert [sampler.examples(step).tolist() for step in (39, 3, 20, 0)] == [in_order[s] for s in (39, 3, 20, 0)]
    assert [sampler_of(seed=2).examples(step).tolist() for step in range(40)] != in_order


def test_an_empty_set_is_refused():
    assert_refused("no training examples", BatchSampler, features_of([]), 3, 1, [8])


@pytest.mark.parametrize(("multiple", "rows"), [(1, [8, 1, 3, 2, 1]), (2, [8, 2, 4, 2, 2]), (None, [8, 8, 4, 2, 2])])
def test_evaluation_sees_everything_once_in_batches_of_similar_size(multiple, rows):
    features = features_of([9, 3, 30, 5, 7, 4, 8, 12, 3, 18, 6, 17, 5, 16, 8])
    seen, shapes = [], []
    for numbers, batch in feature_sets.batches_by_length(features, 2, [8, 16, 32], multiple):
        expected = [*numbers, *[numbers[-1]] * (len(batch["label_ids"]) - len(numbers))]
        assert batch["label_ids"].tolist() == expected
        shapes.append(batch["input_ids"].shape)
        seen += numbers.tolist()
    assert shapes == list(zip(rows, [8, 8, 16, 32, 32], strict=True))
    assert sorted(seen) == list(range(15))
    assert features.longest[seen].tolist() == sorted(features.longest)


@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("replicas", [1, 2])
def test_packed_evaluation_sees_everything_once_in_batches_of_one_shape(choices, replicas):
    lengths = [9, 3, 30, 5, 7, 4, 8, 12, 3, 18, 6, 17, 5, 16, 8, 2] * 2
    features, seen, shapes = features_of(lengths, choices=choices), [], []
    for numbers, places, batch in feature_sets.packed_batches(features, 3, replicas, 32):
        assert batch["label_ids"][places].tolist() == numbers.tolist()
        own = batch["sequence_lengths"].reshape(-1, choices).max(axis=1)
        assert own[places].tolist() == features.longest[numbers].tolist()
        assert own.sum() == own[places].sum()  # the other positions are free
        shapes.append({name: x.shape for name, x in batch.items()})
        seen += numbers.tolist()
    assert sorted(seen) == list(range(len(features)))
    assert all(shape == shapes[0] for shape in shapes)
    assert shapes[0]["input_ids"] == (3 * replicas, 32)
    assert len(shapes) == -(-sum(lengths) // (32 * 3 * replicas))  # little padding


def test_pairs_are_refused_for_a_model_with_one_segment():
    pair = FeatureSet.from_sequences([([1, 2, 3], [0, 1, 1])])
    task = types.SimpleNamespace(featurize=lambda *_: pair, documents=None)
    data = TaskData(task, tiny_config(type_vocab_size=1), None, FinetuningConfig(max_seq_length=8))
    assert_refused("one segment only", data.featurize, [], "train")


def test_an_example_is_truncated_if_one_of_its_sequences_is():
    sequences = [([1, 2], [0, 0], is_truncated) for is_truncated in (True, True, False, True, False, False)]
    assert FeatureSet.from_sequences(sequences, choices=2).num_truncated == 2
