import itertools
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.pretraining import input_pipeline
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import FRAME_HEADER, record_offsets
from bert_tf.training.errors import explain_errors
from bert_tf.training.interface import TrainingData
from tests.pretraining.test_record_shards import FEATURES, find, write_shard


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


def batches(shards, *, start=0, count=12, seed=1, context=None, size=3, **options):
    dataset = input_pipeline.training_batches(
        shards, FEATURES, size, seed=seed, start_step=start, context=context, **options
    )
    return first_ids(dataset, count)


def test_every_epoch_contains_every_record_once(shards):
    stream = list(itertools.chain(*batches(shards, count=20)))
    assert sorted(stream[:60]) == sorted(list(range(20)) * 3)
    assert stream[:20] != stream[20:40]


def test_batches_depend_only_on_seed_and_step(shards):
    all_batches = batches(shards, count=30)
    for start in (3, 4, 13):
        assert batches(shards, start=start, count=8) == all_batches[start : start + 8]
    assert batches(shards, count=30, seed=2) != all_batches


@pytest.mark.parametrize("reads_through", [False, True])
def test_pipelines_and_replicas_share_each_global_batch(shards, reads_through):
    whole = batches(shards, count=6, size=4)
    parts = []
    for i in range(2):
        options = {"size": 4, "context": worker(i, of=2, replicas=4), "reads_through": reads_through}
        parts.append(batches(shards, count=12, **options))
        assert batches(shards, start=2, count=4, **options) == parts[-1][4:8]
    for step, batch in enumerate(whole):
        assert batch == list(itertools.chain(*(part for p in parts for part in p[2 * step : 2 * step + 2])))


def worker(i, of, replicas=None):
    return tf.distribute.InputContext(num_input_pipelines=of, input_pipeline_id=i, num_replicas_in_sync=replicas or of)


def test_the_order_of_earlier_versions_is_kept(shards):
    assert batches(shards, count=4) == [[11, 17, 1], [19, 3, 6], [10, 15, 13], [8, 0, 4]]


def test_a_worker_reads_no_records_of_others(shards):
    first_window = batches(shards, count=3, size=4)
    own = {number for batch in first_window for number in batch[:2]}
    others = {number for batch in first_window for number in batch[2:]}
    assert not own & others
    numbers = iter(range(20))
    for shard in shards:
        offsets = record_offsets(shard.path, "--input_file")
        with open(shard.path, "r+b") as file:
            for start, end in itertools.pairwise(offsets.tolist()):
                if next(numbers) not in own:
                    file.seek(start + FRAME_HEADER)
                    file.write(bytes(end - start - FRAME_HEADER))
    assert batches(shards, count=3, size=4, context=worker(0, of=2)) == [batch[:2] for batch in first_window]
    message = r"^--input_file: record \d+ of .* is damaged.* The last checkpoint is intact\.$"
    with pytest.raises(InputError, match=message), explain_errors(TrainingData(None), "", lambda: 0):
        batches(shards, count=3, size=4, context=worker(1, of=2))


def test_training_needs_no_word_from_other_workers_about_the_end_of_the_data(shards):
    assert input_pipeline.training_batches(shards, FEATURES, 4, None, 0).cardinality() == tf.data.INFINITE_CARDINALITY
    strategy = build_strategy(DistributionConfig("mirrored"))
    data = strategy.distribute_datasets_from_function(
        lambda context: input_pipeline.training_batches(shards, FEATURES, 4, 1, 0, context)
    )
    assert not iter(data)._enable_get_next_as_optional


@pytest.mark.parametrize("context", [None, worker(1, of=2)])
def test_evaluation_reads_the_files_in_order_and_starts_again(shards, context):
    dataset = input_pipeline.training_batches(shards, FEATURES, 8, None, 0, context)
    expected = [[*range(8)], [*range(8, 16)], [16, 17, 18, 19, 0, 1, 2, 3]]
    assert first_ids(dataset, 3) == [batch[4:] if context else batch for batch in expected]


def test_parsed_types_and_shapes(shards):
    batch = next(iter(input_pipeline.training_batches(shards, FEATURES, 3, 0, 0)))
    by_length = {"input_ids": 5, "input_mask": 5, "segment_ids": 5}
    by_prediction = {"masked_lm_positions": 2, "masked_lm_ids": 2, "masked_lm_weights": 2}
    shapes = {name: [3, size] for name, size in (by_length | by_prediction).items()} | {"next_sentence_labels": [3]}
    assert {name: x.shape.as_list() for name, x in batch.items()} == shapes
    assert {name for name, x in batch.items() if x.dtype != tf.int32} == {"masked_lm_weights"}


def test_the_shards_of_a_step_and_of_its_window_are_found(shards):
    def shards_of(numbers):
        return sorted({f"part-{(number > 6) + (number > 7)}.tfrecord" for number in numbers})

    stream = batches(shards, count=20)
    for step in (0, 3, 4, 11, 19):
        found = input_pipeline.shards_of_step(shards, 3, 1, step)
        assert [os.path.basename(path) for path in found] == shards_of(stream[step])
        found = input_pipeline.shards_of_step(shards, 3, 1, step, reads_window=True)
        window = step // 4 * 4
        assert [os.path.basename(path) for path in found] == shards_of(itertools.chain(*stream[window : window + 4]))


def test_files_are_mixed_in_proportion_to_their_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 10)
    for i, count in enumerate((20, 80)):
        write_shard(tmp_path / f"part-{i}.tfrecord", range(100 * i, 100 * i + count))
    stream = list(itertools.chain(*batches(find(tmp_path / "part-*"), size=10, count=10)))
    assert len(set(stream)) == 100
    assert [sum(number < 100 for number in stream[start : start + 50]) for start in (0, 50)] == [14, 6]


def test_large_shards_get_fewer_streams(shards, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_LARGE_SHARD", 6)
    assert input_pipeline._stream_count(3, 20, seed=1) == 3
    assert input_pipeline._stream_count(3, 18, seed=1) == 8
    assert sorted(itertools.chain(*batches(shards, size=10, count=2))) == list(range(20))


def test_a_late_step_is_found_without_reading_earlier_shards(shards, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 3)
    monkeypatch.setattr(input_pipeline, "_INTERLEAVED_STREAMS", 1)
    last = shards[2].path
    step = next(i for i in range(900_000, 900_020) if input_pipeline.shards_of_step(shards, 3, 1, i, True) == [last])
    batch = batches(shards, start=step, count=1)
    for shard in shards[:2]:
        os.remove(shard.path)
    assert batches(shards, start=step, count=1) == batch


@pytest.mark.parametrize(("streams", "seed"), [(8, None), (2, 5), (8, 5)])
def test_locate_agrees_with_the_records_that_are_read(shards, monkeypatch, streams, seed):
    monkeypatch.setattr(input_pipeline, "_INTERLEAVED_STREAMS", streams)
    read = (tf.data.TFRecordDataset(shard.path).batch(100) for shard in shards)
    numbers = [_first_ids_of(next(iter(records))) for records in read]
    stream = [numbers[s][r] for s, r in zip(*input_pipeline.locate(shards, np.arange(90), seed), strict=True)]
    for start in (0, 19, 45):
        records = input_pipeline._records_from(shards, start, seed).take(41).batch(41)
        assert _first_ids_of(next(iter(records))) == stream[start : start + 41]


def _first_ids_of(records):
    return input_pipeline.parse(FEATURES, records)["input_ids"][:, 0].numpy().tolist()
