import hashlib
import json

import pytest
import tensorflow as tf

from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.sequences.example_format import Metadata
from bert_tf.sequences.masking import MaskingPolicy
from bert_tf.text import FullTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS, vocabulary_hash
from data_prep.corpus.files import find_input_files
from data_prep.examples.instances import SegmentRules
from data_prep.examples.original_order import read_documents, write_original_examples
from data_prep.examples.records import ExampleOptions, ShardSet
from tests.conftest import assert_refused, golden_json, golden_path
from tests.data_prep.corpora import records
from tests.programs import run

CASES = golden_json("pretraining_data/index.json")["cases"]


def make(directory, case):
    flags = case["args"]
    vocab = str(golden_path("tokenization/vocab.txt"))
    policy = MaskingPolicy(masked_lm_prob=flags["masked_lm_prob"], whole_word=flags["do_whole_word_mask"])
    options = ExampleOptions(flags["max_seq_length"], flags["max_predictions_per_seq"], True, policy)
    rules = SegmentRules(flags["max_seq_length"], flags["short_seq_prob"], flags["dupe_factor"], flags["random_seed"])
    paths = tuple(str(directory / f"out-{i}.tfrecord") for i in range(flags["number_of_output_files"]))
    counts = write_original_examples(
        [str(golden_path(f"pretraining_data/{name}")) for name in flags["input_file"]],
        FullTokenizer(vocab, flags["do_lower_case"]),
        rules,
        options,
        ShardSet(paths, options.features, vocabulary_hash(vocab), {}),
    )
    return paths, counts


def canonical(serialized):
    """Returns a record in the canonical form of the golden data's digests."""
    values = {}
    for name, entry in tf.train.Example.FromString(serialized).features.feature.items():
        kind = entry.WhichOneof("kind")
        values[name] = list(getattr(entry, kind).value) if kind else []
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_examples_are_the_releases(name, tmp_path):
    paths, counts = make(tmp_path, CASES[name])
    for path, expected in zip(paths, CASES[name]["outputs"], strict=True):
        found = list(records(path))
        assert len(found) == expected["records"]
        assert hashlib.sha256(b"".join(found)).hexdigest() == expected["deterministic_proto_sha256"]
        assert hashlib.sha256(b"".join(map(canonical, found))).hexdigest() == expected["canonical_sha256"]
    assert counts["predictions"] == sum(o["sum_masked"] for o in CASES[name]["outputs"])
    assert counts["random_next"] == sum(o["random_next"] for o in CASES[name]["outputs"])


@pytest.mark.skipif("mask30_cased" not in CASES, reason="the golden set in use lacks this case")
def test_program_makes_cased_examples_of_an_uncased_vocabulary(tmp_path):
    case = CASES["mask30_cased"]
    flags = {name: value for name, value in case["args"].items() if name != "number_of_output_files"}
    flags["input_file"] = ",".join(str(golden_path(f"pretraining_data/{name}")) for name in flags["input_file"])
    flags |= {"vocab_file": golden_path("tokenization/vocab.txt"), "output_file": tmp_path / "out.tfrecord"}
    program = ("-m", "data_prep.create_pretraining_data", *(f"--{name}={value}" for name, value in flags.items()))
    assert "but --do_lower_case is False" in run(*program, "--original_order")
    found = b"".join(map(canonical, records(str(flags["output_file"]))))
    assert hashlib.sha256(found).hexdigest() == case["outputs"][0]["canonical_sha256"]


def test_the_rules_next_to_a_vocabulary_are_followed_and_recorded(write):
    vocab = write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ne\né\n")
    write("tokenizer_config.json", '{"do_lower_case": true, "strip_accents": false}')
    text = write("text.txt", "É É É\nÉ\n\nÉ É\n")
    files = (f"--input_file={text}", f"--vocab_file={vocab}", f"--output_file={vocab}.tfrecord")
    run("-m", "data_prep.create_pretraining_data", *files)
    record = Metadata.read(f"{vocab}.tfrecord").tokenizer
    assert (record["do_lower_case"], record["strip_accents"]) == (True, False)


def test_training_reads_them(tmp_path):
    name = "edge"
    case = CASES[name]
    paths, _ = make(tmp_path, case)
    lengths = case["args"]["max_seq_length"], case["args"]["max_predictions_per_seq"]
    shards = record_shards.find_shards(",".join(paths), *lengths, 30522)
    assert [shard.records for shard in shards] == [o["records"] for o in case["outputs"]]
    batch = next(iter(input_pipeline.training_batches(shards, shards[0].metadata.record_features(), 4, None, 0)))
    expected = golden_json(f"pretraining_data/{name}.first40.json.gz")[0][:4]
    for feature in ("input_ids", "masked_lm_positions", "masked_lm_weights"):
        assert batch[feature].numpy().tolist() == [record[feature] for record in expected]


def test_carriage_returns_join_words_and_files_run_into_one_another(write):
    vocab = write("vocab.txt", "\n".join([*SPECIAL_TOKENS, "a", "ab", "b"]))
    inputs = [write("1.txt", "a\rb\n\n \u00a0\na"), write("2.txt", "b\n\u200b\nb\r\n\r\nab\n\r")]
    inputs.append(write("3.txt", "b"))
    tokenizer = FullTokenizer(vocab)
    tokens = [[tokenizer.convert_ids_to_tokens(s) for s in d] for d in read_documents(inputs, tokenizer)]
    assert tokens == [[["ab"]], [["a"], ["b"], ["b"]], [["ab"], ["b"]]]


def test_files_may_be_empty_or_named_twice(write):
    vocab = write("vocab.txt", "\n".join([*SPECIAL_TOKENS, "a", "b"]))
    names = ",".join([write("1.txt", "a\n\n"), write("2.txt", ""), write("1.txt", "a\n\n"), write("3.txt", "b")])
    inputs = [file.path for file in find_input_files(names, as_original=True)]
    assert read_documents(inputs, FullTokenizer(vocab)) == [[[5]], [[5]], [[6]]]
    assert_refused("listed twice", find_input_files, names)


def test_bytes_that_are_not_utf8_are_named(write):
    vocab = write("vocab.txt", "[PAD]\n[UNK]\n")
    paths = [write("1.txt", b"a\n\xc3\xa9 caf\xe9\n")]
    assert_refused(r"1\.txt, line 2: byte 0xe9", read_documents, paths, FullTokenizer(vocab))
