import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import input_pipeline
from bert_tf.example_format import Sidecar, pretraining_features, serialize
from bert_tf.files import InputError

LENGTH, PREDICTIONS, VOCAB = 5, 2, 1000
FEATURES = pretraining_features(LENGTH, PREDICTIONS)


def write_shard(path, numbers, features=FEATURES):
    """A shard whose records carry their number as the first id."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            values = {f.name: [0.0 if f.is_float else 0] * f.length for f in features}
            values["input_ids"][0] = number
            writer.write(serialize(features, values))


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 10)
    start = 0
    for i, count in enumerate((7, 1, 12)):
        write_shard(tmp_path / f"part-{i}.tfrecord", range(start, start + count))
        start += count
    return find(tmp_path / "part-*")


def find(pattern, length=LENGTH, predictions=PREDICTIONS, vocab_size=VOCAB, vocab_sha256=None):
    return input_pipeline.find_shards(str(pattern), length, predictions, vocab_size, vocab_sha256)


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


def sidecar(path, **changes):
    values = {
        "records": 3,
        "file_size": path.stat().st_size,
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "vocab_sha256": "abc",
        "settings": {},
    }
    Sidecar(**(values | changes)).write(str(path))


def test_sidecars_give_the_counts_and_are_passed_over_by_globs(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_shard(path, range(3))
    sidecar(path)
    (shard,) = find(tmp_path / "*", vocab_sha256="abc")
    assert (shard.records, shard.sidecar.vocab_sha256) == (3, "abc")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 9}, "--max_seq_length=9, but --max_seq_length is 5"),
        ({"max_predictions_per_seq": 9}, "--max_predictions_per_seq=9"),
        ({"vocab_sha256": "other"}, "another vocabulary"),
        ({"file_size": 1}, "by its sidecar"),
        ({"format_version": 99}, "not a sidecar of format"),
    ],
)
def test_sidecars_that_do_not_fit_are_refused(tmp_path, changes, message):
    path = tmp_path / "a.tfrecord"
    write_shard(path, range(3))
    sidecar(path, **changes)
    with pytest.raises(InputError, match=message):
        find(path, vocab_sha256="abc")


def test_files_without_sidecar_are_checked_by_their_records(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_shard(path, [1, 2])
    with pytest.raises(InputError, match="input_ids has 5 numbers, but 6 are expected"):
        find(path, length=6)
    with pytest.raises(InputError, match="masked_lm_positions has 2 numbers, but 1 are expected"):
        find(path, predictions=1)
    write_shard(path, [VOCAB])
    with pytest.raises(InputError, match="the id 1000 is outside the model's vocabulary"):
        find(path)


def test_damaged_files_are_refused(tmp_path, write):
    with pytest.raises(InputError, match="matches no file"):
        find(tmp_path / "*.tfrecord")
    with pytest.raises(InputError, match="is empty"):
        find(write("empty.tfrecord", b""))
    path = tmp_path / "a.tfrecord"
    write_shard(path, range(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(InputError, match="ends inside its record 3"):
        find(path)
    path.write_bytes(whole[:30] + bytes([whole[30] ^ 255]) + whole[31:])
    with pytest.raises(InputError, match=r"first record of .* can't be read"):
        find(path)
    with pytest.raises(InputError, match="is not a TFRecord file"):
        find(write("text.tfrecord", "no records here, just text, and not much of it\n"))


def test_locate_agrees_with_the_stream(shards):
    numbers = [record for shard in input_pipeline.locate(shards, 0, 5).shards for record in _numbers(shard)]
    for index in (0, 6, 7, 8, 19):
        place = input_pipeline.locate(shards, index, 5)
        assert _numbers(place.shards[place.shard])[place.record] == numbers[index]
    assert input_pipeline.locate(shards, 45, 5).epoch == 2


def _numbers(shard):
    dataset = tf.data.TFRecordDataset(shard.path).batch(100)
    return np.concatenate([input_pipeline.parse(FEATURES, x)["input_ids"][:, 0] for x in dataset]).tolist()
