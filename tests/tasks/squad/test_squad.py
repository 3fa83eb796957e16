"""Compares the functions with original names, and the program's functions for files, with original outputs."""

import functools
import hashlib
import json

import numpy as np
import pytest

from bert_tf.tasks import original_api, squad
from tests.conftest import golden_json, golden_lines, golden_path
from tests.graphs.test_answers import tokenizer
from tests.tasks.squad.test_evaluation import with_threshold

pytestmark = pytest.mark.golden
CASES = sorted(golden_json("squad/index.json")["cases"])
PREDICTIONS = sorted(golden_json("squad/index.json")["predictions"])


@functools.cache
def examples_of(name: str) -> list[squad.SquadExample]:
    case = golden_json("squad/index.json")["cases"][name]
    path = str(golden_path(f"squad/inputs/{case['input']}"))
    return original_api.read_squad_examples(path, case["is_training"], case["version_2_with_negative"])


def lengths(case: dict) -> dict:
    return {key: case[key] for key in ("max_seq_length", "doc_stride", "max_query_length", "is_training")}


@functools.cache
def features_of(name: str) -> list[original_api.SquadFeatures]:
    case = golden_json("squad/index.json")["cases"][name]
    features: list[original_api.SquadFeatures] = []
    original_api.convert_examples_to_features(
        examples=examples_of(name),
        tokenizer=tokenizer(do_lower_case=case["do_lower_case"]),
        output_fn=features.append,
        **lengths(case),
    )
    return features


@functools.cache
def windows_of(name: str) -> squad.SquadWindows:
    case = golden_json("squad/index.json")["cases"][name]
    sizes = lengths(case)
    is_training = sizes.pop("is_training")
    config = squad.SquadConfig(**sizes)
    return squad.featurize(examples_of(name), tokenizer(do_lower_case=case["do_lower_case"]), config, is_training)


def with_text_keys(feature: dict) -> dict:
    """Returns the feature with string keys, as in JSON."""
    return {k: {str(i): x for i, x in v.items()} if isinstance(v, dict) else v for k, v in feature.items()}


@pytest.mark.parametrize("name", CASES)
def test_examples(name):
    case = golden_json("squad/index.json")["cases"][name]
    expected = golden_lines(f"squad/examples/{case['examples']}.jsonl.gz")
    assert [{key: vars(example)[key] for key in expected[0]} for example in examples_of(name)] == expected


@pytest.mark.parametrize("name", CASES)
def test_features(name):
    case = golden_json("squad/index.json")["cases"][name]
    expected = golden_lines(f"squad/features/{name}.jsonl.gz")
    found = [with_text_keys(vars(feature)) for feature in features_of(name)]
    assert len(found) == case["num_features"]
    if case["features_file"] == "full":
        assert found == expected
        return
    for row, feature in zip(expected, found, strict=True):
        text = json.dumps(feature, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        assert row.pop("num_tokens") == len(feature["tokens"])
        assert row.pop("sha256") == hashlib.sha256(text.encode()).hexdigest()
        assert row == {key: feature[key] for key in row}


def assert_files_are_golden(settings: dict, run: dict, directory) -> None:
    """Checks that predictions are equal, probabilities within 1e-12, and null odds within 1e-9."""
    stored = settings["nbest_and_null_odds_stored_under"]
    assert json.loads((directory / "predictions.json").read_text()) == golden_json(
        f"squad/predictions/{run['name']}.predictions.json"
    )
    found = json.loads((directory / "nbest.json").read_text())
    expected = golden_json(f"squad/predictions/{stored}.nbest.json.gz")
    assert list(found) == list(expected)
    for qas_id, entries in expected.items():
        assert [entry["probability"] for entry in found[qas_id]] == pytest.approx(
            [entry["probability"] for entry in entries], abs=1e-12, rel=0
        )
        for key in ("text", "start_logit", "end_logit"):
            assert [entry[key] for entry in found[qas_id]] == [entry[key] for entry in entries]
    if settings["version_2_with_negative"]:
        odds = golden_json(f"squad/predictions/{stored}.null_odds.json")
        assert json.loads((directory / "null_odds.json").read_text()) == pytest.approx(odds, abs=1e-9, rel=0)
    else:
        assert not (directory / "null_odds.json").exists()


@pytest.mark.parametrize("name", PREDICTIONS)
def test_predictions(name, tmp_path):
    settings = golden_json("squad/index.json")["predictions"][name]
    case, n_best_size, max_answer_length, is_2 = (
        settings[key] for key in ("features_case", "n_best_size", "max_answer_length", "version_2_with_negative")
    )
    logits = np.load(golden_path(f"squad/predictions/{settings['logits']}"))
    columns = [logits[key].tolist() for key in ("unique_ids", "start_logits", "end_logits")]
    results = [original_api.RawResult(*result) for result in zip(*columns, strict=True)]
    files = [str(tmp_path / file) for file in ("predictions.json", "nbest.json", "null_odds.json")]
    sizes = n_best_size, max_answer_length, settings["do_lower_case"]
    for run in settings["runs"]:
        options = {"version_2_with_negative": is_2, "null_score_diff_threshold": run["null_score_diff_threshold"]}
        original_api.write_predictions(examples_of(case), features_of(case), results, *sizes, *files, **options)
        assert_files_are_golden(settings, run, tmp_path)

    config = squad.SquadConfig(
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
        version_2_with_negative=is_2,
        pad_to_max_seq_length=True,
    )
    arrays = windows_of(case), logits["start_logits"], logits["end_logits"]
    threshold = settings["runs"][0]["null_score_diff_threshold"] or 0.0
    predictions = squad.decode(examples_of(case), *arrays, config=config, null_score_diff_threshold=threshold)
    predictions.write(*files[: 2 + is_2])
    assert_files_are_golden(settings, settings["runs"][0], tmp_path)
    for run in settings["runs"][1:]:
        expected = golden_json(f"squad/predictions/{run['name']}.predictions.json")
        assert with_threshold(predictions, run["null_score_diff_threshold"]) == expected


def test_get_final_text():
    for row in golden_lines("squad/get_final_text.jsonl"):
        assert original_api.get_final_text(row["pred_text"], row["orig_text"], row["do_lower_case"]) == row["result"], (
            row
        )
