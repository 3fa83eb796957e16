"""Exports finished runs, and calls the exported models with Python values, JSON lines and TensorFlow Serving's JSON."""

import errno
import functools
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import sys
import types
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import serving_load
from bert_tf import export
from bert_tf.checkpoints import run_directory, saver
from bert_tf.config import BiLstmConfig
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.models import ClassifierModel, SpanModel
from bert_tf.graphs import exportable
from bert_tf.graphs.answers import ServedPredictor
from bert_tf.graphs.exportable import Exportable, plain_logits
from bert_tf.graphs.pretrained import ServedEncoder
from bert_tf.graphs.text_reader import IDS, TEXT_LISTS, TEXTS, signature
from bert_tf.runtime import json_files
from bert_tf.runtime.files import InputError
from bert_tf.serving import line_predictions
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tasks.squad.answerer import describe_model
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests import programs
from tests.conftest import ROOT, assert_close, assert_refused, tokenizer_json, with_large_head
from tests.finished_runs import config, write_model, write_run
from tests.programs import PIECES


def write_classifier(directory, **settings):
    """Writes a finished run of a classifier with three classes; returns the directory."""
    recorded = {"task": "text", "problem": "classification", "labels": ["x", "ý", "z"]} | settings
    return write_run(directory, with_large_head(ClassifierModel(config(), 3)), **recorded)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp("runs") / "own", text_b_column="other")


@pytest.fixture(scope="module")
def exported(finished_run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported") / "model"
    export.export_run(finished_run, str(directory))
    return str(directory)


loaded = functools.cache(export.load)


@pytest.fixture(scope="module")
def model(exported):
    return loaded(exported, "serving_default")


def test_the_directory_is_complete_and_contains_no_path_of_this_machine(exported, finished_run):
    assert sorted(os.listdir(os.path.dirname(exported))) == ["model"]
    assert {"saved_model.pb", "variables"} <= set(os.listdir(exported))
    with open(f"{exported}/vocab.txt", encoding="utf-8") as reader:
        assert reader.read().split() == PIECES
    assert json_files.read(f"{exported}/labels.json", "") == ["x", "ý", "z"]
    settings = json_files.read(f"{exported}/tokenizer_config.json", "")
    assert (settings["do_lower_case"], settings["model_max_length"]) == (True, 12)
    with open(f"{exported}/saved_model.pb", "rb") as reader:
        graph = reader.read()
    assert os.path.dirname(finished_run).encode() not in graph
    assert os.path.dirname(export.__file__).encode() not in graph


def test_examples_of_any_length_are_answered_in_their_order(model):
    assert model.inputs == ["text_a", "text_b"]
    assert model.signatures == ["serving_default", "token_ids"]
    texts = ["a b c d e f", "", "c", "ab cd ef ab cd ef ab cd ef", "\ud800 d"]
    examples = [{"text_a": text, "text_b": "b"} for text in texts]
    together = model.predict(examples, batch_size=2)
    for example, answer in zip(examples, together, strict=True):
        (alone,) = model.predict([example])
        assert_close(answer["probabilities"], alone["probabilities"], 1e-6)
        assert answer["label"] == alone["label"] == answer["label_names"][int(np.argmax(answer["probabilities"]))]
        assert answer["label_names"] == ["x", "ý", "z"]
    assert [answer["truncated"] for answer in together] == [False, False, False, True, False]
    assert model.predict([]) == []


def test_inputs_bear_the_names_of_the_trained_columns(tmp_path):
    def served(name, text, second=""):
        directory = write_classifier(tmp_path / name, text_column=text, text_b_column=second)
        return export.build(directory, ExportConfig())

    for name, columns, expected in (
        ("one", ["text"], ["text"]),
        ("pair", ["review", "zebra"], ["review", "zebra"]),
        ("space", ["review", "the answer"], ["text_a", "text_b"]),  # which TensorFlow doesn't take
        ("word", ["class"], ["text_a"]),
    ):
        specs = served(name, *columns).served.signatures()["serving_default"].input_signature
        assert [spec.name for spec in specs] == expected, name
    served("saved", "review").write(str(tmp_path / "exported"), ExportConfig())
    loaded = export.load(str(tmp_path / "exported"))
    (expected,) = loaded.predict([{"review": "a b"}])
    assert loaded.inputs == ["review"]
    assert loaded.predict([{"text_a": "a b"}]) == loaded.predict(["a b"]) == [expected]
    assert_close(loaded(text_a=tf.constant(["a b"]))["logits"][0], expected["logits"], 1e-6)
    lines = [b'{"text_a": "a b", "id": 1}', b'{"review": "a b", "text_a": "c"}', b'{"body": "a b"}']
    writer = io.StringIO()
    assert line_predictions.answer_lines(loaded, lines, writer, 8) == (1, 3)
    first, second, third = map(json.loads, writer.getvalue().splitlines())
    assert (first["id"], first["label"]) == (1, expected["label"]) and "text_a" not in first
    assert (second["text_a"], second["label"]) == ("c", expected["label"])
    assert third["error"] == "the field 'review' is missing. Expected: ['review']; given: ['body']."


def test_a_classifier_of_another_program_need_not_be_callable(tmp_path):
    module = tf.Module()
    module.served = tf.function(
        lambda sentence: {"logits": tf.strings.length(sentence)}, input_signature=[tf.TensorSpec([None], tf.string)]
    )
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.served})
    assert export.load(str(tmp_path)).predict(["four"]) == [{"logits": 4}]


def test_valid_lines_are_answered_although_others_are_invalid(model, capsys):
    lines = [
        b'{"text_a": "a", "text_b": "b", "id": 5, "label": "w", "error": 1}\n',
        b"{oops\n",
        b"\n",
        b'{"text_a": "a", "id": 6}\n',
        b'{"text_a": "\\ud800", "text_b": "\\u0000", "id": "\\udc00"}',
        b'{"text_a": "a", "text_b": "b", "id": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"text_a": "a", "text_b": "b", "id": ' + b"7" * 5000 + b"}",
        b'{"text_a": "a", "text_b": "b", "id": NaN}',
        b'{"text_a": "a", "text_b": "b", "text_b": "c"}',
        b'{"text_a": "a", "text_b": "\xff"}',
    ]
    written = io.StringIO()
    assert line_predictions.answer_lines(model, lines, written, 2, input_bytes=sum(map(len, lines))) == (8, 10)
    assert "10/10 " in capsys.readouterr().err
    answers = [json.loads(line) for line in written.getvalue().splitlines()]
    assert answers[0]["id"] == 5
    assert answers[0]["label"] in ("x", "ý", "z")
    assert (answers[0]["given_label"], answers[0]["given_error"]) == ("w", 1) and "error" not in answers[0]
    assert answers[1] == {"error": answers[1]["error"]}
    assert answers[1]["error"].startswith("column 2: not valid JSON")
    assert "the line is blank" in answers[2]["error"]
    assert answers[3]["id"] == 6
    assert "'text_b' is missing" in answers[3]["error"]
    assert answers[4]["label"] in ("x", "ý", "z")
    assert answers[4]["id"] == "\udc00"
    keywords = ("maximum recursion depth", "digits", "NaN", "the key 'text_b'", "0xff")
    assert all(word in answer["error"] for word, answer in zip(keywords, answers[5:], strict=True))
    assert written.getvalue().encode()  # a file can hold all of it


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, os.strerror(errno.EIO)), tf.errors.UnavailableError(None, None, "Input/output error")]
)
def test_lines_are_answered_although_reading_fails_behind_them(model, error):
    def lines():
        yield b'{"text_a": "a", "text_b": "b"}'
        raise error

    written = io.StringIO()
    with pytest.raises(InputError, match=r"the input can't be read any further.*Input/output error"):
        line_predictions.answer_lines(model, lines(), written, batch_size=2)
    assert "label" in json.loads(written.getvalue())


def test_valid_ids_are_answered_although_others_are_refused(exported):
    lengths = "the fields 'input_ids', 'input_mask', 'segment_ids' have different lengths. Use the same length."
    large = "the field 'input_ids' must contain numbers from 0 to 2147483647, not [2, 1099511627776]."
    rows = [
        ([2, 3], [0, 0], None),
        ([2, 4000], [0, 0], f"input_ids must be between 0 and {len(PIECES) - 1}."),
        ([2, 3, 4], [0, 0], lengths),
        ([2, 3], [0, 7], "segment_ids must be between 0 and 1."),
        ([2, 1 << 40], [0, 0], large),
        ([2, 5], [0, 0], None),
    ]
    fields = [{"input_ids": ids, "input_mask": [1, 1], "segment_ids": segments} for ids, segments, _ in rows]
    lines = [json.dumps(example).encode() for example in fields]
    written = io.StringIO()
    assert line_predictions.answer_lines(loaded(exported, "token_ids"), lines, written, batch_size=3) == (4, 6)
    answers = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [answer.get("error") for answer in answers] == [error for *_, error in rows]
    assert all(len(answers[number]["probabilities"]) == 3 for number in (0, 5))


def test_the_program_answers_every_line_and_fails_if_a_line_is_invalid(exported, tmp_path):
    typed = '{"text_a": "a", "text_b": "b", "id": 5}\n{"text_a": "a"}\n'
    output_file = tmp_path / "answers.jsonl"
    command = ["-m", "bert_tf.predict", f"--model={exported}", f"--output_file={output_file}"]
    output = programs.run(*command, typed=typed, expect=1)
    assert "error: 1 of 2 lines could not be used. See 'error' in their answers." in output
    assert "Traceback" not in output
    first, second = map(json.loads, output_file.read_text().splitlines())
    assert first["id"] == 5
    assert first.keys() >= {"label", "probabilities"}
    assert second.keys() == {"error"}
    with open(output_file) as own:
        assert "also the input" in programs.run(*command, f"--input_file={own.name}", expect=1)
    (tmp_path / "lines").write_text("id,text\n1,a b\n")
    message = f"{tmp_path}/lines is a table with commas. Write JSON lines"
    assert message in programs.run(*command, f"--input_file={tmp_path}/lines", expect=1)


def test_answers_are_not_lost_when_reading_fails(tmp_path):
    output = tmp_path / "answers.jsonl"
    output.write_text("of an earlier run\n")
    with pytest.raises(InputError), line_predictions.answers_file(str(output)) as writer:
        writer.write("an answer\n")
        with pytest.raises(InputError, match="another program writes this file"):
            line_predictions.answers_file(str(output)).__enter__()
        raise InputError("the input can't be read further")
    assert output.read_text() == "of an earlier run\n"
    assert (tmp_path / "answers.jsonl.incomplete").read_text() == "an answer\n"
    with line_predictions.answers_file(str(output)) as writer:
        writer.write("all answers\n")
    assert (os.listdir(tmp_path), output.read_text()) == (["answers.jsonl"], "all answers\n")


class Echo(tf.Module):
    """Returns the input in the shapes of served models' outputs."""

    def from_ids(self, input_ids):
        rows = tf.cast(input_ids, tf.float32)
        return {
            "start_logits": rows,
            "sequence_output": rows[:, :, tf.newaxis],
            "logits": tf.ones([tf.shape(rows)[0], 5]),
        }

    def from_endings(self, prompt, endings):
        return {"truncated": endings == "b", "probabilities": tf.zeros(tf.shape(endings)), "choice": prompt}

    def from_texts(self, text_a):
        lengths = tf.strings.length(text_a)
        layers = tf.cast(tf.sequence_mask(lengths), tf.float32)[:, tf.newaxis, :, tf.newaxis]
        return {"all_encoder_layers": tf.repeat(layers, 3, axis=1), "num_tokens": lengths}


def test_answers_have_no_padding_in_batches_of_different_lengths(tmp_path):
    echo = Echo()
    signatures = {
        "token_ids": signature(echo.from_ids, input_ids=IDS["input_ids"]),
        "endings": signature(echo.from_endings, prompt=TEXTS, endings=TEXT_LISTS),
        "all_layers": signature(echo.from_texts, text_a=TEXTS),
    }
    tf.saved_model.save(echo, str(tmp_path), signatures=signatures)
    short, long = export.load(str(tmp_path), "token_ids").predict([{"input_ids": [7]}, {"input_ids": [1, 2, 3]}])
    assert short == {"start_logits": [7.0], "sequence_output": [[7.0]], "logits": [1.0] * 5}
    assert long["start_logits"] == [1.0, 2.0, 3.0] and len(long["logits"]) == 5
    examples = [{"prompt": "p", "endings": ["a", "b"]}, {"prompt": "q", "endings": ["b"]}]
    answers = export.load(str(tmp_path), "endings").predict(examples)
    assert answers[0] == {"truncated": [False, True], "probabilities": [0.0, 0.0], "choice": "p"}
    assert answers[1] == {"truncated": [True], "probabilities": [0.0], "choice": "q"}
    one, three = export.load(str(tmp_path), "all_layers").predict(["a", "abc"])
    assert one["all_encoder_layers"] == [[[1.0]]] * 3
    assert three["all_encoder_layers"] == [[[1.0]] * 3] * 3


def test_outputs_have_a_row_for_each_example_and_are_the_same_from_ids(exported, model):
    texts = tf.constant(["a b", ""]), tf.constant(["c", "é"])
    found = model(text_a=texts[0], text_b=texts[1])
    assert {len(values) for values in found.values()} == {2}  # as TensorFlow Serving's rows require
    assert_close(model._model(*texts)["logits"], found["logits"], 0)  # the loaded SavedModel can be called itself
    ids = {"input_ids": [2, 5, 6, 3, 7, 3, 0], "input_mask": [1] * 6 + [0], "segment_ids": [0] * 4 + [1, 1, 0]}
    by_ids = loaded(exported, "token_ids")(**{name: tf.constant([values]) for name, values in ids.items()})
    assert_close(by_ids["probabilities"][0], found["probabilities"][0], 1e-6)


def test_every_request_of_many_clients_has_an_answer_in_the_forms_of_the_documentation(exported):
    models = {name: loaded(exported, name) for name in ("serving_default", "token_ids")}
    server = serving_load.start_server(models)
    results = serving_load.send_load(server.server_address[1], ["text_a", "text_b"], 4, 0.5, 3)
    assert results.wrong == []
    assert results.seconds["valid"]

    page = (ROOT / "docs" / "howto" / "serve.md").read_text(encoding="utf-8")
    (pairs,) = re.findall(r"\| GLUE, pairs of texts \| `(.*)` \|", page)
    url = f"http://127.0.0.1:{server.server_address[1]}/v1/models/qnli:predict"
    with urllib.request.urlopen(url, pairs.encode()) as response:
        assert json.load(response)["predictions"][0]["label"] in ("x", "ý", "z")
    server.shutdown()


@pytest.fixture(scope="module")
def without_text(finished_run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("without_text") / "token_ids"
    export.export_run(finished_run, str(directory), ExportConfig(text=False))
    return directory


def test_a_model_without_text_needs_no_operation_of_tensorflow_text(without_text):
    assert export.load(str(without_text), "token_ids").signatures == ["token_ids"]
    assert b"Wordpiece" not in (without_text / "saved_model.pb").read_bytes()


def test_onnx_gives_the_same(finished_run, tmp_path):
    if importlib.util.find_spec("tf2onnx") is None:
        for option, flag in (("onnx", "--export_onnx"), ("onnx_int8", "--export_onnx_int8")):
            with pytest.raises(InputError, match=f"{flag}: tf2onnx"):
                export.export_run(finished_run, str(tmp_path / "out"), ExportConfig(**{option: True}))
        return
    onnxruntime = pytest.importorskip("onnxruntime")
    model = with_large_head(ClassifierModel(config().replace(hidden_act="gelu_erf"), 3))
    plain = plain_logits(model)
    exportable.write_onnx(plain, str(tmp_path), ExportConfig(onnx=True, onnx_int8=True))
    inputs = {name: np.array([[1, 1, 1, 0]], np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    (logits,) = onnxruntime.InferenceSession(str(tmp_path / "ids.onnx")).run(None, inputs)
    expected = plain(**{name: tf.constant(values) for name, values in inputs.items()})["logits"]
    assert_close(logits, expected, 1e-5)
    (rounded,) = onnxruntime.InferenceSession(str(tmp_path / "ids_int8.onnx")).run(None, inputs)
    assert 1e-5 < np.abs(rounded - expected).max() < 0.05 * np.abs(expected).max()
    assert sorted(os.listdir(tmp_path)) == ["ids.onnx", "ids_int8.onnx"]


def test_a_missing_onnxruntime_is_named_before_the_export(monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", types.ModuleType("tf2onnx"))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"--export_onnx_int8: onnxruntime is not installed\. Install it with `pip"):
        ExportConfig(onnx_int8=True)


def test_no_incomplete_directory_is_left(finished_run, tmp_path, monkeypatch):
    def fail_half_way(model, directory, **options):
        os.makedirs(f"{directory}/variables")
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        export.export_run(finished_run, str(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


def test_wrong_directories_and_signatures_are_refused(finished_run, exported, tmp_path):
    left = shutil.copytree(exported, tmp_path / "model.tmp-0")
    inside = f"{exported}/labels.json/1"
    assert_refused(f"--export_dir: {exported} already exists", export.export_run, finished_run, exported)
    assert_refused("--export_dir: .*labels.json is not a directory", export.export_run, finished_run, inside)
    assert_refused("--model_dir: .* 'nowhere'", export.export_run, pathlib.Path("nowhere"), tmp_path / "out")
    assert_refused(f"^{tmp_path} is not an exported model", export.load, str(tmp_path))
    signatures = f"^{exported} has no signature 'oops'; it has serving_default, token_ids"
    assert_refused(signatures, export.load, exported, "oops")
    assert_refused(f"^{left} is an incomplete export", export.load, left)


def test_a_model_with_a_bilstm_is_refused(tmp_path):
    model = SpanModel(config(), bilstm=BiLstmConfig(1, 3))
    directory = write_run(tmp_path / "run", model, task="squad", bilstm_layers=1, bilstm_units=3)
    assert_refused(f"--model_dir: {directory}: .* BiLSTM", export.export_run, directory, tmp_path / "exported")


def test_pre_trained_models_are_exported_from_any_directory(tmp_path):
    write_model(tmp_path, BertEncoder(config()))
    served = export.build(str(tmp_path), ExportConfig(max_seq_length=9)).served
    assert isinstance(served, ServedEncoder)
    assert sorted(served.signatures()) == ["all_layers", "pairs", "sentence_vectors", "serving_default", "token_ids"]
    assert_refused("33", export.build, str(tmp_path), ExportConfig(max_seq_length=33))


def test_an_exported_vocabulary_keeps_the_rules_of_its_tokenizer(write, tmp_path):
    content = tokenizer_json([*SPECIAL_TOKENS, "a", "é", "e"])
    vocab_file = write("model/tokenizer.json", json.dumps(content))
    write("model/tokenizer_config.json", json.dumps({"do_lower_case": True, "strip_accents": False}))
    Exportable(None, None, Tokenizer.checked(vocab_file, True), 12).write_text_settings(str(tmp_path))
    assert Tokenizer.checked(str(tmp_path / "vocab.txt"), True).tokenize("A É") == ["a", "é"]
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 12


def test_the_served_answerer_uses_the_threshold_that_was_tuned_for_the_model(tmp_path):
    model = with_large_head(SpanModel(config()))
    recorded = {"task": "squad", "version_2_with_negative": True, "doc_stride": 3, "max_query_length": 4}
    directory = write_run(tmp_path / "run", model, flags={"n_best_size": 6, "max_answer_length": 5}, **recorded)
    tuned = {"null_score_diff_threshold": -1.5, "best_f1": 50.0, "model": describe_model(7, model)}
    (tmp_path / "run" / run_directory.TUNED_FILE).write_text(json.dumps(tuned))
    served = export.build(directory, ExportConfig()).served
    assert isinstance(served, ServedPredictor)
    settings = served.config
    assert (settings.max_seq_length, settings.doc_stride, settings.max_query_length) == (12, 3, 4)
    assert (settings.n_best_size, settings.max_answer_length, served.null_score_diff_threshold) == (6, 5, -1.5)
    changed = ExportConfig(null_score_diff_threshold=2.0, answers={"max_answer_length": 9})
    served = export.build(directory, changed).served
    assert (served.config.max_answer_length, served.null_score_diff_threshold) == (9, 2.0)
    (tmp_path / "run" / run_directory.TUNED_FILE).write_text(json.dumps(tuned | {"model": "step 1"}))
    assert export.build(directory, ExportConfig()).served.null_score_diff_threshold == 0.0


def test_a_vocabulary_of_another_model_is_not_exported(tmp_path):
    directory = write_classifier(tmp_path / "run")
    vocab_file = tmp_path / "run" / "vocab.txt"
    vocab_file.write_text("\n".join([*PIECES[:-2], *reversed(PIECES[-2:])]))
    assert_refused(r"recorded in .*run\.json", export.export_run, directory, str(tmp_path / "exported"))


@pytest.mark.parametrize(
    "name", ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]
)
@pytest.mark.parametrize("damage", ["cut", "removed", "changed"])
def test_a_damaged_model_is_named(without_text, tmp_path, name, damage):
    shutil.copytree(without_text, tmp_path / "damaged")
    path = tmp_path / "damaged" / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"\xff" * 4000)
    if damage == "removed":
        path.unlink()
    with pytest.raises(InputError, match=f"{tmp_path}/damaged (can't be loaded|is not an exported)") as error:
        export.load(str(tmp_path / "damaged"), "token_ids")
    assert "\n" not in str(error.value)


def test_directories_may_have_any_name(tmp_path):
    name = "a[1]b\\c*?"
    directory = write_classifier(tmp_path / name)
    assert saver.latest_checkpoint(directory) == f"{directory}/model.ckpt-7"
    (tmp_path / name / "checkpoint").unlink()
    export.export_run(directory, str(tmp_path / "export" / name), ExportConfig(text=False))
    loaded = export.load(str(tmp_path / "export" / name), "token_ids")
    assert loaded.inputs == ["input_ids", "input_mask", "segment_ids"]
