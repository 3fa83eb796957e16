import numpy as np
import pytest
import tensorflow as tf

from bert_tf.sequences.example_format import Feature, pretraining_features
from data_prep.examples.records import RecordEncoder
from tests.programs import serialize

FEATURES = pretraining_features(9, 3)


@pytest.mark.parametrize("limit", [100, 300, 70_000, 5_000_000])
def test_bytes_are_tensorflows(tmp_path, limit):
    rng = np.random.default_rng(limit)
    values = {
        f.name: rng.random((20, f.length)).astype(np.float32) if f.is_float else rng.integers(0, limit, (20, f.length))
        for f in FEATURES
    }
    values["input_mask"] = values["input_ids"] > limit // 2
    path = tmp_path / "tensorflow.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in range(20):
            writer.write(serialize(FEATURES, {name: (x[row] + 0).tolist() for name, x in values.items()}))
    assert b"".join(RecordEncoder(FEATURES, limit).encode(values)) == path.read_bytes()


def test_wrong_lengths_and_ids_that_are_too_large_are_refused():
    with pytest.raises(ValueError, match="a has 3 numbers, but 2 are expected"):
        RecordEncoder([Feature("a", 2)], 10).encode({"a": np.zeros((4, 3), int)})
    with pytest.raises(ValueError, match="don't fit into four bytes"):
        RecordEncoder([Feature("a", 2)], 1 << 29)
