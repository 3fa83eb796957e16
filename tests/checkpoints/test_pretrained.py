import json
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import checkpoints, convert_checkpoint, export
from bert_tf.checkpoints import pretrained, saver
from bert_tf.config import ModelFiles
from bert_tf.encoder import BertEncoder
from bert_tf.serving.export_config import ExportConfig
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.conftest import assert_close, assert_refused, tiny_config
from tests.finished_runs import write_model

PIECES = (*SPECIAL_TOKENS, "a", "b")


def save(directory, pieces=PIECES, **changes):
    return write_model(directory, BertEncoder(tiny_config(**changes)), pieces)


def test_texts_and_pairs_are_encoded(tmp_path):
    encoder = save(tmp_path)
    bert, by_prefix = (bert_tf.load_model(str(path)) for path in (tmp_path, tmp_path / "bert_model.ckpt"))
    assert bert.config == by_prefix.config == tiny_config()
    assert_close(by_prefix("A b").pooled_output, encoder(np.array([[2, 5, 6, 3]])).pooled_output, 1e-6)
    output = bert("a", ("a b", "b"), "b a b a b", max_seq_length=6)
    ids = np.array([[2, 5, 3, 0, 0, 0], [2, 5, 6, 3, 6, 3], [2, 6, 5, 6, 5, 3]])
    segments = np.array([[0] * 6, [0, 0, 0, 0, 1, 1], [0] * 6])
    expected = encoder(ids, (ids > 0).astype(np.int32), segments)
    assert_close(output.sequence_output, expected.sequence_output, 1e-6)
    batch = bert(["a", ("a b", "b"), "b a b a b"], max_seq_length=6)
    assert_close(batch.sequence_output, output.sequence_output, 0)
    assert_close(bert(bert.tokenizer("a")).sequence_output, bert("a").sequence_output, 0)
    assert len(repr(bert)) < 700  # without the lists of all tensors
    for wrong in (("a", "b", "a"), [["a"]], 5, ("a", None), ()):
        assert_refused("a pair of texts or a list of them", bert, "a", wrong)
    assert_refused("max_position_embeddings", bert, "a", max_seq_length=4000)
    assert_refused("texts is empty", bert, [])
    save(tmp_path / "one", type_vocab_size=1)
    assert_refused("an embedding for one segment only", bert_tf.load_model(tmp_path / "one"), ("a", "b"))
    one = bert_tf.SentenceEncoder.from_pretrained(tmp_path / "one")
    assert_refused("an embedding for one segment only", one.encode, [("a", "b")])


def test_the_type_of_matrix_multiplications_is_that_of_keras_by_default(tmp_path):
    save(tmp_path)
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        for dtype in (None, "float32", "bfloat16", "mixed_bfloat16"):
            found = bert_tf.load_model(tmp_path, dtype=dtype).encoder.dtype_policy.name
            assert found == ("float32" if dtype == "float32" else "mixed_bfloat16")
    finally:
        keras.config.set_dtype_policy(policy)


def test_casing_is_read_from_the_run_or_given(tmp_path):
    save(tmp_path, [*PIECES, "A"])
    assert not bert_tf.load_model(str(tmp_path)).tokenizer.do_lower_case
    assert bert_tf.load_model(str(tmp_path), do_lower_case=True).tokenizer.do_lower_case
    (tmp_path / "run.json").write_text('{"resume_settings": {"do_lower_case": true}}')
    assert bert_tf.load_model(str(tmp_path)).tokenizer.do_lower_case
    assert_refused(r"run\.json has True\. Omit", bert_tf.load_model, str(tmp_path), do_lower_case=False)


def test_another_config_in_the_directory_is_named(tmp_path, capsys):
    save(tmp_path)
    values = json.loads((tmp_path / "bert_config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert bert_tf.load_model(str(tmp_path)) and "has another" not in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps(values | {"hidden_act": "gelu", "model_type": "bert"}))
    assert bert_tf.load_model(str(tmp_path)).config.hidden_act == values["hidden_act"]
    assert "config.json has another hidden_act" in capsys.readouterr().err


def test_a_left_to_right_model_is_loaded_as_one(tmp_path):
    save(tmp_path)
    assert not bert_tf.load_model(str(tmp_path)).encoder.causal
    for resume_settings in ({"objective": "ltr"}, {"causal": True}):
        (tmp_path / "run.json").write_text(json.dumps({"resume_settings": resume_settings}))
        assert bert_tf.load_model(str(tmp_path / "bert_model.ckpt")).encoder.causal


def test_a_vocabulary_may_be_missing_but_no_config(tmp_path):
    save(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    assert bert_tf.load_model(str(tmp_path)).tokenizer is None
    assert_refused(r"no vocab\.txt", bert_tf.load_model(str(tmp_path)), "a")
    (tmp_path / "bert_config.json").unlink()
    assert_refused(r"has no bert_config\.json or config\.json", bert_tf.load_model, str(tmp_path))


def save_checkpoint(directory, encoder, step):
    tensors = checkpoints.named_variables(encoder.weights) | {"global_step": np.int64(step)}
    saver.CheckpointSaver(str(directory), keep_checkpoint_max=1).save(step, tensors)


def save_run(directory, step):
    """Makes a run directory with a checkpoint of one step; returns the encoder."""
    encoder = save(directory)
    (directory / "bert_model.ckpt.index").unlink()
    save_checkpoint(directory, encoder, step)
    return encoder


def test_the_checkpoint_that_the_run_evaluates_is_loaded(tmp_path):
    def assert_loads(directory, encoder):
        converted = tempfile.mkdtemp(dir=tmp_path)
        convert_checkpoint.convert(str(directory), converted, "hf")
        for path in (directory, converted):
            assert_close(bert_tf.load_model(path).encoder.embedding_table, encoder.embedding_table, 0)

    newest = save_run(tmp_path / "run", 9)
    assert_loads(tmp_path / "run", newest)
    best = BertEncoder(tiny_config())
    save_checkpoint(tmp_path / "run" / "best", best, 3)
    assert_loads(tmp_path / "run", best)

    (tmp_path / "swept" / "trials" / "worse").mkdir(parents=True)
    better = save_run(tmp_path / "swept" / "trials" / "better", 5)
    assert_loads(tmp_path / "swept", better)
    save_run(tmp_path / "swept" / "trials" / "third", 5)
    assert_refused(f"{tmp_path}/swept: 2 trials have checkpoints", bert_tf.load_model, str(tmp_path / "swept"))


def test_the_files_of_a_model_are_found(tmp_path):
    start, own, given = tmp_path / "start", tmp_path / "own", str(tmp_path / "given")
    save(start)
    beside = [(str(directory), f"{directory}/bert_config.json", f"{directory}/vocab.txt") for directory in (start, own)]
    checkpoint = str(start / "bert_model.ckpt")
    assert pretrained.find_files(ModelFiles(checkpoint), str(own)) == beside[0]
    assert pretrained.find_files(ModelFiles(None), str(own)) == (str(own), None, None)
    assert pretrained.find_files(ModelFiles(None, given), "") == (None, given, None)
    assert pretrained.find_files(ModelFiles(None, given, given), str(own)) == (None, given, given)
    assert pretrained.find_files(ModelFiles(checkpoint, given), "") == (str(start), given, beside[0][2])
    save_run(own, 3)
    assert pretrained.find_files(ModelFiles(str(tmp_path / "gone")), str(own)) == beside[1]
    assert_refused("there is no checkpoint", pretrained.find_files, ModelFiles(str(tmp_path / "gone")), "")


def test_nothing_random_is_returned_where_no_pooler_was_loaded(tmp_path):
    encoder = save(tmp_path)
    weights = {name: w for name, w in checkpoints.named_variables(encoder.weights).items() if "pooler" not in name}
    saver.write_checkpoint(str(tmp_path / "bert_model.ckpt"), weights)
    bert = bert_tf.load_model(tmp_path)
    output, expected = bert("a b"), encoder(bert.tokenizer("a b"))
    assert output.pooled_output is None
    assert_close(output.sequence_output, expected.sequence_output, 1e-6)
    assert_refused("has no pooler", bert_tf.SentenceEncoder.from_pretrained(tmp_path).encode, ["a"], pooling="pooled")
    signatures = export.build(str(tmp_path), ExportConfig()).served.signatures()
    assert "pooled_output" not in signatures["serving_default"](tf.constant(["a"]))


@pytest.mark.parametrize("formats", [["hf", "tf1", "hf"], ["tf1", "tf1", "hf", "tf1"]])
def test_conversion_keeps_the_tokenizer_and_the_numbers(tmp_path, formats):
    encoder = save(tmp_path / "0", [*PIECES, "[unused0]", "E", "é"])
    (tmp_path / "0" / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
    (tmp_path / "new.txt").write_text("[URL]\n[unused0]\n\u200d\n")
    added = [tmp_path / "new.txt", *[[]] * len(formats)]
    for number, (target, tokens) in enumerate(zip(formats, added, strict=False)):
        directories = str(tmp_path / f"{number}"), str(tmp_path / f"{number + 1}")
        convert_checkpoint.convert(*directories, target, added_tokens=tokens)
    first, last = (bert_tf.load_model(tmp_path / name) for name in ("1", str(len(formats))))
    text = "A é [URL]b [unused0]"
    assert last.tokenizer.tokenize(text) == ["a", "é", "[URL]", "b", "[unused0]"]
    assert first.tokenizer.record == last.tokenizer.record
    assert_close(first(text).sequence_output, last(text).sequence_output, 1e-6)
    old = encoder.embedding_table.numpy()
    assert last.tokenizer.vocab["[URL]"] == 10
    assert_close(last.encoder.embedding_table[10], old[1], 1e-6)  # "[", "url" and "]" were [UNK]
    assert_close(last.encoder.embedding_table[11], old.mean(axis=0), 1e-6)  # a character that is removed


def test_vocabularies_that_do_not_belong_to_the_model_are_refused(tmp_path, write):
    save(tmp_path)
    config = tiny_config()
    path = write("given/vocab.txt", "\n".join(PIECES[:-1]))
    assert len(pretrained.tokenizer_of(str(tmp_path), config, path).vocab) == 6
    for pieces, error in (
        ([*SPECIAL_TOKENS, "b", "a"], "id 5 is 'b', but 'a'"),
        ([*PIECES, *(f"c{number}" for number in range(config.vocab_size))], "--added_tokens"),
    ):
        write("given/vocab.txt", "\n".join(pieces))
        assert_refused(error, pretrained.tokenizer_of, str(tmp_path), config, path)
