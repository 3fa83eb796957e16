"""The LiteRT model of an export gives the same answers as the SavedModel of the export."""

import functools
import itertools
import json
import os
import shutil
import sys
from concurrent import futures

import pytest

from bert_tf import export
from bert_tf.finetuning.models import ClassifierModel, TokenModel
from bert_tf.model.base_layers import initial_values_from
from bert_tf.runtime.errors import InputError
from bert_tf.serving import export_config, lite_model
from bert_tf.serving.export_config import ExportConfig
from tests import command_server, programs
from tests.conftest import assert_close, assert_refused, with_large_head
from tests.finished_runs import config, write_run

TEXTS = ["a b c d e f", "", "   ", "c", "ab cd ef ab cd ef ab cd ef", "\ud800 d", "zz! ä", "[MASK] b"]
OTHERS = ["b", "", "ab", "a b c d e f a b", "d d d d d d d d d", "e", "\ud800", "b"]
PAIRS = [{"text_a": a, "text_b": b} for a, b in zip(TEXTS, OTHERS, strict=True)]
CHOICES = [{"prompt": a, "endings": [b, "c", a]} for a, b in zip(TEXTS, OTHERS, strict=True)]
CHOICES += [{"prompt": "a", "endings": [""]}, {"prompt": "a", "endings": ["b"]}]
TEXT = {"task": "text", "text_column": "review"}
PAIR = TEXT | {"text_b_column": "other"}
# Type of task -> the number of outputs, run.json, and examples.
KINDS = {
    "pairs": (3, PAIR | {"problem": "classification", "labels": ["x", "ý", "z"]}, PAIRS),
    "multi_label": (3, TEXT | {"problem": "multi_label", "labels": ["x", "y", "z"]}, TEXTS),
    "regression": (1, TEXT | {"problem": "regression", "long_documents": "head_tail"}, TEXTS),
    "choice": (1, {"task": "swag", "labels": ["0", "1", "2", "3"]}, CHOICES),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns the directory of an export for a type of task. It is made when a test first needs it."""
    root = tmp_path_factory.mktemp("lite")

    @functools.cache
    def directory_of(kind):
        outputs, recorded, _ = KINDS[kind]
        with initial_values_from(1):
            model = with_large_head(ClassifierModel(config(), outputs, recorded.get("problem", "classification")))
        quantize, litert = ("none", True) if kind == "regression" else ("int8", False)
        flags = {"label_threshold": "0.3", "min_probability": 0.5} if kind == "multi_label" else {}
        flags |= {"min_probability": 0.6, "abstain_label": "unsure"} if kind == "pairs" else {}
        run = write_run(root / "run" / kind, model, flags or None, **recorded)
        export.export_run(run, str(root / kind), ExportConfig(quantize=quantize, litert=litert))
        return str(root / kind)

    return directory_of


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_saved_model(exported, kind):
    examples = KINDS[kind][-1]
    full, lite = export.load(exported(kind)), export.load(exported(kind), engine="litert")
    assert isinstance(lite, lite_model.LiteModel)
    assert lite.inputs == full.inputs
    for expected, answer in zip(full.predict(examples, 3), lite.predict(examples, 3), strict=True):
        assert answer.keys() == expected.keys()
        if kind == "multi_label":
            is_chosen = [probability >= 0.3 and not answer["abstained"] for probability in answer["probabilities"]]
            assert answer["chosen"] == is_chosen
        for name, value in expected.items():
            if name in ("logits", "probabilities", "score"):
                assert_close(answer[name], value, 1e-5 if kind == "regression" else 0.1, name)
            else:
                assert answer[name] == value, name
    assert lite.predict([]) == []
    if kind == "regression":
        long, ends = full.predict([TEXTS[4], "ab cf ab cd ef"])  # 3 + 7 of 18 tokens
        assert (long["truncated"], ends["truncated"]) == (True, False)
        assert_close(long["score"], ends["score"], 1e-5)


def test_threads_get_the_answers_of_one_thread(exported):
    model = export.load(exported("pairs"), engine="litert")
    examples = [{"text_a": f"{a} {b} {a}", "text_b": b} for a, b in itertools.product("abcdefg", repeat=2)]
    alone = [model.predict([example]) for example in examples]
    assert len({str(answer) for answer in alone}) == len(examples)
    calls = [number % len(examples) for number in range(500)]
    with futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: model.predict([examples[number]]), calls))
    assert answers == [alone[number] for number in calls]


def test_invalid_examples_are_refused_with_their_numbers(exported):
    model = export.load(exported("pairs"), engine="litert")
    with pytest.raises(InputError, match=r"example 1: the field 'other' is missing. .* given: \['review'\]\."):
        model.predict([PAIRS[0], {"text_a": "a"}])
    with pytest.raises(InputError, match="'endings' must be a list of text, not 'b'"):
        export.load(exported("choice"), engine="litert").predict([{"prompt": "a", "endings": "b"}])


def test_lines_are_answered_without_tensorflow(exported):
    lines = "".join(json.dumps(example) + "\n" for example in [*PAIRS[:2], 5])
    command = ["-m", "bert_tf.predict", f"--model={exported('pairs')}", "--engine=litert"]
    output = programs.run(*command, typed=lines, expect=1, server=command_server.without_tensorflow)
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [answer.get("label") in ("x", "ý", "z", "unsure") for answer in answers] == [True, True, False]
    assert "5 is not an object with the fields 'other', 'review'" in answers[2]["error"]
    assert "1 of 3 lines could not be used" in output


def test_what_cannot_be_run_is_named(exported, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="engine='litert' has no signature 'token_ids'"):
        export.load(exported("pairs"), "token_ids", "litert")
    assert_refused(r"engine is 'onnx'.* tensorflow, litert", export.load, exported("pairs"), engine="onnx")
    run = write_run(tmp_path / "run", TokenModel(config(), 5), task="ner", labels=["L", "P"])
    export.export_run(run, str(tmp_path / "tagger"), ExportConfig(text=False, quantize="int8"))
    with pytest.raises(InputError, match=r"tagger: no LiteRT model of texts, pairs or choices"):
        export.load(tmp_path / "tagger", engine="litert")
    damaged = shutil.copytree(exported("pairs"), tmp_path / "damaged")
    os.truncate(damaged / export_config.LITE_INT8_FILE, 100)
    assert_refused(r"model_int8\.tflite can't be loaded", export.load, damaged, engine="litert")
    os.remove(damaged / export_config.LITE_INT8_FILE)
    assert_refused(r"damaged: no LiteRT model", export.load, damaged, engine="litert")
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(InputError, match=r"the engine LiteRT: ai-edge-litert is not installed"):
        export.load(exported("pairs"), engine="litert")
