import functools
import gzip

import pytest
import tensorflow as tf

from bert_tf.pretraining import record_shards
from bert_tf.pretraining.example_sets import ExampleFinder, PretrainingData
from bert_tf.sequences.example_format import Metadata, parse, pretraining_features
from bert_tf.text.vocabulary import SPECIAL_TOKENS, vocabulary_record
from tests.conftest import assert_refused, tiny_config
from tests.programs import serialize

LENGTH, PREDICTIONS, VOCAB = 5, 2, 1000
FEATURES = pretraining_features(LENGTH, PREDICTIONS)


def write_shard(path, numbers, features=FEATURES):
    """Writes a shard; the first id of each record is its number."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            values = {f.name: [0.0 if f.is_float else 0] * f.length for f in features}
            values["input_ids"][0] = number
            writer.write(serialize(features, values))


def find(pattern, length=LENGTH, predictions=PREDICTIONS, vocab_size=VOCAB):
    return record_shards.find_shards(str(pattern), length, predictions, vocab_size)


def metadata(path, **changes):
    values = {"records": 3, "file_size": path.stat().st_size, "max_seq_length": LENGTH, "settings": {}}
    values |= {"max_predictions_per_seq": PREDICTIONS, "vocab_sha256": "abc"}
    Metadata(**(values | changes)).write(Metadata.path_of(str(path)))


def test_counts_are_read_from_metadata_files_which_globs_ignore(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_shard(path, range(3))
    metadata(path)
    (shard,) = find(tmp_path / "*")
    assert (shard.records, shard.metadata.vocab_sha256) == (3, "abc")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 9}, "--max_seq_length=9, but --max_seq_length is 5"),
        ({"max_predictions_per_seq": 9}, "--max_predictions_per_seq=9"),
        ({"file_size": 1}, "according to its metadata file"),
        ({"format_version": 99}, "format"),
    ],
)
def test_metadata_files_that_do_not_fit_are_refused(tmp_path, changes, message):
    path = tmp_path / "a.tfrecord"
    write_shard(path, range(3))
    metadata(path, **changes)
    find_held_out = functools.partial(record_shards.find_shards, flag_name="--eval_input_file")
    message = rf"^--eval_input_file: .*a\.tfrecord.*{message}"
    assert_refused(message, find_held_out, str(path), LENGTH, PREDICTIONS, VOCAB)


def test_empty_files_are_left_out(tmp_path, write):
    """Files are empty if --num_shards exceeds the number of examples. The original's files have no metadata file."""
    path = tmp_path / "a-00001"
    write_shard(path, range(3))
    metadata(path)
    write("a-00000", b"")
    write("a-00002", b"")
    metadata(tmp_path / "a-00002", records=0)
    assert [shard.path for shard in find(tmp_path / "a-*")] == [str(path)]
    assert_refused("matches only empty files", find, f"{tmp_path}/a-00000,{tmp_path}/a-00002")
    metadata(tmp_path / "a-00000", records=3, file_size=100)
    assert_refused("has 0 bytes, but 100", find, tmp_path / "a-*")
    metadata(path, records=0)
    assert_refused("no records according to its metadata file", find, path)


def test_unsuitable_and_damaged_files_are_refused(tmp_path, write):
    path = tmp_path / "a.tfrecord"
    write_shard(path, range(3))
    whole = path.read_bytes()
    for options, message in (
        ({"length": 6}, "input_ids has 5 numbers instead of 6"),
        ({"predictions": 1}, "masked_lm_positions has 2 numbers instead of 1"),
        ({"vocab_size": 0}, "the id 0"),
    ):
        assert_refused(message, find, path, **options)
    assert_refused("matches no file", find, tmp_path / "*.txt")
    for content, message in (
        (b"", "only empty files"),
        (whole[:-5], "ends inside its record 3"),
        (whole[:30] + bytes([whole[30] ^ 255]) + whole[31:], "record 1 of .* is damaged"),
        (b"no records here, just text, and not much of it\n", "is not a TFRecord file"),
    ):
        assert_refused(message, find, write("a.tfrecord", content))


def test_records_of_other_programs_are_read_or_what_is_missing_is_named(tmp_path):
    """Records may have Model Garden's names, be gzipped, and lack next-sentence labels."""
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    example = tf.train.Example()
    for feature in FEATURES[:-1]:
        entry = example.features.feature[names.get(feature.name, feature.name)]
        (entry.float_list if feature.is_float else entry.int64_list).value.extend([1] * feature.length)
    path = str(tmp_path / "a.tfrecord.gz")
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        writer.write(example.SerializeToString())
    assert_refused(r"no next_sentence_labels, only input_mask, .* --objective=mlm", find, path)
    finder = ExampleFinder(tiny_config(vocab_size=VOCAB), "mlm", "", 0)
    examples = finder.find(PretrainingData(path, LENGTH, PREDICTIONS))
    (record,) = tf.data.TFRecordDataset(examples.shards[0].path).as_numpy_iterator()
    batch = parse(examples.features, tf.constant([record]))
    assert {name: values.numpy().tolist() for name, values in batch.items()} == {
        feature.name: [[1] * feature.length] for feature in FEATURES[:-1]
    }
    damaged = gzip.compress(gzip.decompress((tmp_path / "a.tfrecord.gz").read_bytes()))[:-9]
    (tmp_path / "a.tfrecord.gz").write_bytes(damaged)
    assert_refused("damaged gzip file", find, path)


@pytest.mark.parametrize(
    ("change", "record", "error"),
    [
        ({}, {}, None),
        ({5: "COVID"}, {}, None),
        ({6: "b", 7: "a"}, {}, "recorded in"),
        ({}, {"do_lower_case": False}, "do_lower_case is True, but .* has False"),
    ],
)
def test_records_and_model_have_the_same_tokenizer(tmp_path, write, change, record, error):
    tokens = [*SPECIAL_TOKENS, "[unused0]", "a", "b"]
    data_vocab = write("data/vocab.txt", "\n".join(tokens))
    model_vocab = write("model/vocab.txt", "\n".join(change.get(i, token) for i, token in enumerate(tokens)))
    write("model/tokenizer_config.json", '{"do_lower_case": true}')
    path = tmp_path / "a.tfrecord"
    write_shard(path, [1])
    identity = {"do_lower_case": True, **record, **vocabulary_record(data_vocab)}
    metadata(path, records=1, vocab_sha256=identity["vocab_sha256"], settings={"tokenizer": identity})
    finder = ExampleFinder(tiny_config(vocab_size=len(tokens)), "mlm_nsp", model_vocab, 0, str(tmp_path / "model"))
    data = PretrainingData(str(path), LENGTH, PREDICTIONS)
    if error is None:
        assert finder.find(data).records == 1 and finder.rules["do_lower_case"]
    else:
        assert_refused(error, finder.find, data)
