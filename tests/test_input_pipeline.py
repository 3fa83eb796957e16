import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import input_pipeline
from tests.test_record_shards import FEATURES, find, write_shard


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 10)
    start = 0
    for i, count in enumerate((7, 1, 12)):
        write_shard(tmp_path / f"part-{i}.tfrecord", range(start, start + count))
        start += count
    return find(tmp_path / "part-*")


def first_ids(dataset, count):
    return [batch["input_ids"][:, 0].numpy().tolist() for batch in dataset.take(count)]


def batches(shards, start=0, count=12, seed=1, context=None, size=3):
    return first_ids(input_pipeline.training_batches(shards, FEATURES, size, seed, start, context), count)


def test_every_epoch_has_every_record_once(shards):
    stream = list(itertools.chain(*batches(shards, count=20)))
    assert sorted(stream[:60]) == sorted(list(range(20)) * 3)
    assert stream[:20] != stream[20:40]


def test_batches_are_a_function_of_seed_and_step(shards):
    all_batches = batches(shards, count=30)
    for start in (1, 3, 4, 7, 13, 22):
        assert batches(shards, start=start, count=8) == all_batches[start : start + 8]
    assert batches(shards, count=30, seed=2) != all_batches


def test_pipelines_and_replicas_share_each_global_batch(shards):
    whole = batches(shards, count=6, size=4)
    parts = []
    for i in range(2):
        context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=i, num_replicas_in_sync=4)
        parts.append(batches(shards, count=12, size=4, context=context))
        assert batches(shards, start=2, count=4, size=4, context=context) == parts[-1][4:8]
    for step, batch in enumerate(whole):
        assert batch == list(itertools.chain(*(part for p in parts for part in p[2 * step : 2 * step + 2])))


def test_evaluation_goes_through_the_files_in_order_and_starts_again(shards):
    dataset = input_pipeline.evaluation_batches(shards, FEATURES, 8)
    assert list(itertools.chain(*first_ids(dataset, 3))) == [*range(20), 0, 1, 2, 3]


def test_parsed_types_and_shapes(shards):
    batch = next(iter(input_pipeline.training_batches(shards, FEATURES, 3, 0, 0)))
    assert {name: (x.shape.as_list(), x.dtype.name) for name, x in batch.items()} == {
        "input_ids": ([3, 5], "int32"),
        "input_mask": ([3, 5], "int32"),
        "segment_ids": ([3, 5], "int32"),
        "masked_lm_positions": ([3, 2], "int32"),
        "masked_lm_ids": ([3, 2], "int32"),
        "masked_lm_weights": ([3, 2], "float32"),
        "next_sentence_labels": ([3], "int32"),
    }


def test_position_names_the_shards_of_a_step(shards):
    names = input_pipeline.describe_position(shards, 3, 1, 0)
    assert "part-" in names


def test_locate_agrees_with_the_stream(shards):
    numbers = [record for shard in input_pipeline.locate(shards, 0, 5).shards for record in _numbers(shard)]
    for index in (0, 6, 7, 8, 19):
        place = input_pipeline.locate(shards, index, 5)
        assert _numbers(place.shards[place.shard])[place.record] == numbers[index]
    assert input_pipeline.locate(shards, 45, 5).epoch == 2


def _numbers(shard):
    dataset = tf.data.TFRecordDataset(shard.path).batch(100)
    return np.concatenate([input_pipeline.parse(FEATURES, x)["input_ids"][:, 0] for x in dataset]).tolist()
