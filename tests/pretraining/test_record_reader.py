import io

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.pretraining.record_reader import RecordReader
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import record_offsets
from tests.pretraining.test_record_shards import write_shard


@pytest.fixture
def shard(tmp_path):
    write_shard(tmp_path / "a.tfrecord", range(4))
    return str(tmp_path / "a.tfrecord")


def ids(records):
    return [tf.train.Example.FromString(r).features.feature["input_ids"].int64_list.value[0] for r in records]


def test_records_come_in_the_order_that_is_asked_for(shard, tmp_path):
    other = str(tmp_path / "b.tfrecord")
    write_shard(other, range(10, 13))
    reader = RecordReader([shard, other], [4, 3])
    wanted = np.array([1, 0, 0, 1, 0]), np.array([2, 3, 0, 0, 3])
    assert ids(reader.read(*wanted)) == [12, 3, 0, 10, 3]


def test_adjacent_records_are_read_at_once_and_gaps_only_on_remote_storage(shard, monkeypatch):
    offsets = record_offsets(shard, "--input_file")
    reader = RecordReader([shard], [4])
    reader.read(np.array([0]), np.array([0]))  # reads the headers
    sizes = []

    class CountingFile(io.FileIO):
        def read(self, size):
            sizes.append(size)
            return super().read(size)

    monkeypatch.setattr(files, "open_file", lambda path, mode, buffering: CountingFile(path, mode))
    wanted = np.zeros(3, int), np.array([3, 1, 0])
    assert ids(reader.read(*wanted)) == [3, 1, 0]
    assert sizes == [offsets[2], offsets[4] - offsets[3]]
    monkeypatch.setattr(files, "is_remote", lambda path: True)
    assert ids(reader.read(*wanted)) == [3, 1, 0]
    assert sizes[2:] == [offsets[4]]


def test_files_that_were_changed_or_damaged_are_named(shard):
    with pytest.raises(InputError, match=r"a.tfrecord has 4 records instead of 5"):
        RecordReader([shard], [5]).read(np.array([0]), np.array([0]))
    reader = RecordReader([shard], [4])
    reader.read(np.array([0]), np.array([0]))
    with open(shard, "r+b") as file:
        file.truncate(int(record_offsets(shard, "--input_file")[3]) + 2)
    assert ids(reader.read(np.array([0]), np.array([2]))) == [2]
    with pytest.raises(InputError, match=r"record 4 of .*a.tfrecord is damaged"):
        reader.read(np.array([0, 0]), np.array([2, 3]))
