"""Tests data that the input pipeline masks during reading."""

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.pretraining.example_sets import ExampleFinder
from bert_tf.pretraining.pretraining_config import PretrainingConfig, PretrainingData
from bert_tf.pretraining.run import PretrainingRun
from bert_tf.text import graph_masking
from bert_tf.text.example_format import Metadata, names, serialize, unmasked_features
from bert_tf.text.graph_masking import BatchMasker
from bert_tf.text.masking import MaskingPolicy, MaskingVocabulary
from bert_tf.text.vocabulary import vocabulary_hash
from bert_tf.training.settings import TrainingConfig
from tests.conftest import assert_refused, tiny_config

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
VOCAB = {"[PAD]": PAD, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
VOCAB |= {f"{'##' * (i % 3 == 2)}p{i}": i for i in range(FIRST, 90)}
LENGTH, PREDICTIONS, ROWS = 40, 5, 20


def sequences(rows, rng):
    """Returns the features of a batch of unmasked sequences with random lengths."""
    ids = rng.integers(FIRST, len(VOCAB), (rows, LENGTH))
    ends = rng.integers(8, LENGTH, (rows, 1))
    places = np.arange(LENGTH)
    ids[:, 0] = CLS
    ids[(places == ends) | (places == ends // 2)] = SEP
    mask = places <= ends
    ids[~mask] = PAD
    return {
        "input_ids": ids.astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": (mask & (places > ends // 2)).astype(np.int32),
        "next_sentence_labels": rng.integers(0, 2, rows).astype(np.int32),
        "word_starts": (ids % 3 != 2).astype(np.int32),
    }


@pytest.fixture(scope="module")
def batch():
    return sequences(ROWS, np.random.default_rng(0))


def write_unmasked(path, batch, rows, **settings):
    features = unmasked_features(LENGTH, word_starts=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(serialize(features, {name: np.atleast_1d(value[row]) for name, value in batch.items()}))
    policy = {"masking_policy": {"whole_word": True} | settings}
    metadata = Metadata(len(rows), path.stat().st_size, LENGTH, 0, "abc", policy, names(features))
    metadata.write(Metadata.path_of(str(path)))


def change_metadata(path, **changes):
    metadata = msgspec.structs.replace(Metadata.read(str(path)), **changes)
    metadata.write(Metadata.path_of(str(path)))


def test_pipeline_masks_what_it_reads(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 8)
    write_unmasked(tmp_path / "a.tfrecord", batch, range(20))
    shards = record_shards.find_shards(str(tmp_path / "a.tfrecord"), LENGTH, PREDICTIONS, len(VOCAB))
    features = record_shards.record_features(shards)
    masker = BatchMasker(MaskingPolicy(whole_word=True), MaskingVocabulary.of(VOCAB), PREDICTIONS, seed=5)

    def batches(start, count, context=None):
        dataset = input_pipeline.training_batches(shards, features, 4, 1, start, context, masker)
        return [{name: value.numpy() for name, value in batch.items()} for batch in dataset.take(count)]

    whole = batches(0, 8)
    assert whole[0]["masked_lm_ids"].shape == (4, PREDICTIONS) and "word_starts" not in whole[0]
    np.testing.assert_equal(batches(3, 5), whole[3:])
    contexts = [tf.distribute.InputContext(2, pipeline, 4) for pipeline in range(2)]
    parts = [batches(2, 4, context) for context in contexts]  # two steps, of two replicas each
    for name, value in whole[3].items():
        np.testing.assert_array_equal(value, np.concatenate([p[name] for part in parts for p in part[2:4]]))
    # The same sequences get different masks in each epoch.
    assert len({tuple(b["masked_lm_positions"].ravel()) for b in whole}) == 8
    evaluation = input_pipeline.training_batches(shards, features, 4, None, 0, None, masker).take(3)
    np.testing.assert_equal(*([batch["input_ids"].numpy() for batch in evaluation] for _ in range(2)))


def test_a_part_of_a_batch_gets_the_numbers_that_are_drawn_for_the_whole():
    whole = tf.random.stateless_uniform([9, 7], [3, 4], alg="philox").numpy()
    for first, rows in ((0, 9), (1, 2), (4, 5), (8, 1)):
        part = graph_masking.uniform_rows(tf.constant([3, 4], tf.int64), tf.constant(first), rows, 7)
        np.testing.assert_array_equal(part, whole[first : first + rows])


def test_numbers_are_drawn_only_for_the_own_rows(batch):
    masker = BatchMasker(MaskingPolicy(whole_word=True), MaskingVocabulary.of(VOCAB), PREDICTIONS, seed=5)
    specs = {name: tf.TensorSpec(value[:2].shape, value.dtype) for name, value in batch.items()}
    traced = tf.function(masker, autograph=False).get_concrete_function(specs, *[tf.TensorSpec([], tf.int64)] * 2)
    drawn = [op.outputs[0].shape for op in traced.graph.get_operations() if op.type == "StatelessRandomUniformV2"]
    assert drawn == [[2 * LENGTH + 3]] * 3  # three more, because sequences are made in groups of four


def test_data_for_different_masks_is_not_mixed(batch, tmp_path):
    write_unmasked(tmp_path / "a.tfrecord", batch, range(2))
    write_unmasked(tmp_path / "b.tfrecord", batch, range(2), mask=1.0, same=0.0, random=0.0)
    shards = record_shards.find_shards(str(tmp_path / "*.tfrecord"), LENGTH, PREDICTIONS, len(VOCAB))
    assert_refused("can't be combined", record_shards.record_features, shards)


def test_a_limit_that_cuts_the_masks_is_told(batch, tmp_path, capsys):
    write_unmasked(tmp_path / "a.tfrecord", batch, range(2))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", *list(VOCAB)[1:]]) + "\n")
    config = tiny_config(vocab_size=len(VOCAB) + 1, max_position_embeddings=LENGTH)
    change_metadata(tmp_path / "a.tfrecord", vocab_sha256=vocabulary_hash(str(tmp_path / "vocab.txt")))
    finder = ExampleFinder(config, "mlm_nsp", str(tmp_path / "vocab.txt"), 0)
    for predictions in (6, 5, 5):  # 15% of 40 tokens are 6
        finder.find(PretrainingData(str(tmp_path / "a.tfrecord"), LENGTH, predictions))
    told = capsys.readouterr().err
    assert told.count("Warning") == 1
    assert "6 of 40 tokens should be masked" in told and "--max_predictions_per_seq is 5" in told


def test_data_without_masks_is_refused_for_another_objective(batch, tmp_path):
    write_unmasked(tmp_path / "a.tfrecord", batch, range(2))
    change_metadata(tmp_path / "a.tfrecord", settings={"masking_policy": {"whole_word": True}, "objective": "ltr"})
    config = tiny_config(vocab_size=len(VOCAB), max_position_embeddings=LENGTH)
    data = PretrainingData(str(tmp_path / "a.tfrecord"), LENGTH, PREDICTIONS)
    settings = PretrainingConfig(data=data, training=TrainingConfig(str(tmp_path / "out"), train_batch_size=2))
    assert_refused("was made with --objective=ltr, but --objective is mlm_nsp", PretrainingRun, settings, config)
    assert PretrainingRun(settings.replace(objective="ltr"), config).phases[0].examples.masker is None
