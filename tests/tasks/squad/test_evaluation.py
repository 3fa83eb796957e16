import json
import os

import pytest

from bert_tf.checkpoints import run_directory
from bert_tf.tasks import squad
from bert_tf.tasks.squad import evaluation
from bert_tf.tasks.squad.evaluation import wrong_answers
from bert_tf.tasks.squad.predictions import SquadPredictions, threshold_answer
from tests.conftest import assert_refused, golden_json, golden_path


def one_question(*answers, qas_id="q"):
    """Returns a list of one question."""
    return [squad.make_example(qas_id, "?", "c", [{"text": text, "answer_start": 0} for text in answers])]


RESULTS = golden_json("squad_eval/results.json")


@pytest.mark.golden
@pytest.mark.parametrize("case", RESULTS["subset"] + RESULTS["pipeline"], ids=lambda case: case["predictions"])
def test_scores_equal_the_official_scripts(case):
    is_subset = case in RESULTS["subset"]  # whose files are next to the results
    directory, version = "squad_eval/" if is_subset else "", case["version"].removeprefix("v") if is_subset else ""
    path = golden_path(f"squad_eval/dev_subset_v{version}.json" if is_subset else case["dataset"])
    examples = squad.read_squad(str(path), is_training=False).examples
    answers = squad.read_answers(str(golden_path(directory + case["predictions"])))
    evaluate = squad.evaluate_v2 if "na_probs" in case or version == "2.0" else squad.evaluate_v1
    assert evaluate(examples, answers) == pytest.approx(case["result"], abs=1e-9)
    if "na_probs" in case:
        found = squad.evaluate_v2(examples, answers, golden_json(directory + case["na_probs"]))
        expected = {name.replace("final_", "best_"): value for name, value in case["result_with_na_probs"].items()}
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.golden
def test_scores_of_single_answers():
    for pair in golden_json("squad_eval/string_pairs.json"):
        examples = one_question(pair["gold"])
        v1 = squad.evaluate_v1(examples, {"q": pair["prediction"]})
        assert v1 == pytest.approx({"exact_match": 100 * pair["v1_exact"], "f1": 100 * pair["v1_f1"]}, abs=1e-9)
        v2 = squad.evaluate_v2(examples, {"q": pair["prediction"]})
        assert (v2["exact"], v2["f1"]) == pytest.approx((100 * pair["v2_exact"], 100 * pair["v2_f1"]), abs=1e-9)


def with_threshold(predictions, threshold):
    """Returns the answers for another threshold."""
    texts, odds = predictions.best_non_null, predictions.null_odds
    return {qas_id: threshold_answer(text, odds[qas_id], threshold) for qas_id, text in texts.items()}


def predictions_of(odds, texts):
    predictions = SquadPredictions(null_odds=odds, best_non_null=texts)
    predictions.answers = with_threshold(predictions, 0.0)
    return predictions


def many_questions(right):
    return [
        example for qas_id, text in right.items() for example in one_question(*([text] if text else []), qas_id=qas_id)
    ]


def test_the_threshold_is_tuned_on_answers_that_it_may_replace():
    # The best threshold is 3. With the default, which is lower, the answers of b and c are lost.
    examples = many_questions({"a": "x", "b": "y", "c": "z w", "d": ""})
    predictions = predictions_of({"a": -4.0, "b": 2.0, "c": 3.0, "d": 5.0}, {"a": "x", "b": "y", "c": "z", "d": "v"})
    results = squad.evaluate(examples, predictions, version_2_with_negative=True)
    assert (results["exact"], results["HasAns_total"], results["NoAns_exact"]) == (50.0, 3, 100.0)
    assert (results["best_f1_thresh"], results["best_exact_thresh"], results["best_exact"]) == (3.0, 2.0, 75.0)
    assert results["best_f1"] == pytest.approx(100 * (3 + 2 / 3) / 4)
    tuned = squad.evaluate_v2(examples, with_threshold(predictions, results["best_f1_thresh"]))
    assert tuned["f1"] == pytest.approx(results["best_f1"])


def test_wrong_answers_have_their_f1_and_the_most_probable_is_first():
    examples = many_questions({"a": "x", "b": "y", "c": "z w", "d": ""})
    predictions = predictions_of({"a": -4.0, "b": -1.0, "c": -3.0, "d": -5.0}, {"a": "x", "b": "u", "c": "z", "d": "v"})
    probabilities = {"a": 0.9, "b": 0.2, "c": 0.8, "d": 0.5}
    for qas_id, text in predictions.answers.items():
        predictions.n_best[qas_id] = [{"text": text, "probability": probabilities[qas_id]}]
    rows = wrong_answers(examples, predictions, version_2_with_negative=True)
    found = [(row["id"], row["label"], row["prediction"], row["probability"]) for row in rows]
    assert found == [("c", ["z w"], "z", 0.8), ("d", [], "v", 0.5), ("b", ["y"], "u", 0.2)]
    assert [row["f1"] for row in rows] == pytest.approx([200 / 3, 0, 0])


def test_the_threshold_may_be_to_give_no_answer():
    examples = many_questions({"a": "", "b": "y", "c": ""})
    predictions = predictions_of({"a": -4.0, "b": -3.0, "c": -2.0}, {"a": "x", "b": "wrong", "c": "v"})
    results = squad.tune_null_threshold(examples, predictions)
    assert (results["best_f1"], results["best_exact"]) == pytest.approx((200 / 3, 200 / 3))
    assert with_threshold(predictions, results["best_f1_thresh"]) == {"a": "", "b": "", "c": ""}


def test_answers_to_other_questions_are_left_out():
    examples = many_questions({"a": "x", "b": ""})
    answers, odds = {"a": "x", "b": "y", "other": "z"}, {"a": -1.0, "b": 2.0, "other": 0.0}
    assert squad.evaluate_v2(examples, answers)["f1"] == 50.0
    results = squad.evaluate_v2(examples, answers, odds)
    assert (results["total"], results["best_f1"], results["best_f1_thresh"]) == (2, 100.0, -1.0)


def test_questions_without_an_entry_count_as_wrong(capsys):
    examples = many_questions({"a": "x", "b": "y z", "c": "", "d": "", "e": "v"})
    answers, odds = {"a": "x", "b": "y", "c": ""}, {"a": -1.0, "b": 0.0, "c": 2.0}
    results = squad.evaluate_v2(examples, answers)
    assert "2 of 5 questions have no entry and count as wrong, e.g. 'd'" in capsys.readouterr().err
    assert (results["exact"], results["total"], results["missing"]) == (pytest.approx(40.0), 5, 2)
    assert results["f1"] == pytest.approx(100 * (1 + 2 / 3 + 1) / 5)
    assert (results["HasAns_exact"], results["HasAns_total"]) == (pytest.approx(100 / 3), 3)
    assert (results["NoAns_exact"], results["NoAns_total"]) == (50.0, 2)
    # A wrong answer to each missing question gives the same scores, including the best threshold and average precision.
    wrong = squad.evaluate_v2(examples, answers | {"d": "w", "e": "w"}, odds | {"d": -2.0, "e": 3.0})
    found = squad.evaluate_v2(examples, answers, odds)
    for name in ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_exact", "best_f1"):
        assert found[name] == pytest.approx(wrong[name]), name
    scores = squad.evaluate_v1(many_questions({"a": "x", "b": "y"}), {"a": "x"})
    assert scores == {"exact_match": 50.0, "f1": 50.0, "missing": 1}
    only_unanswerable = squad.evaluate_v2(examples, {"c": ""})
    assert (only_unanswerable["exact"], only_unanswerable["HasAns_exact"]) == (20.0, 0.0)


@pytest.mark.parametrize("content", ["[]", '{"null_score_diff_threshold": "1"}', '{"null_score_diff_threshold": true}'])
def test_other_files_are_no_threshold(write, content):
    directory = os.path.dirname(write(run_directory.TUNED_FILE, content))
    assert_refused(run_directory.TUNED_FILE, run_directory.tuned, directory)


@pytest.mark.parametrize(("content", "message"), [("[]", "p.json: .*`object`"), ('{"q": 3}', "p.json, at .*`str`")])
def test_other_files_are_no_predictions(write, content, message):
    assert_refused(message, squad.read_answers, write("p.json", content))


def test_what_can_not_be_evaluated_is_named():
    for examples in ([], one_question()):
        assert_refused("no question with a correct answer", squad.evaluate_v1, examples, {"q": "x"})
    assert_refused("the answers are to other questions", squad.evaluate_v2, one_question("x"), {"other": "x"})


def test_questions_without_right_answers_are_left_out_and_counted(write, capsys):
    def data(**questions):
        qas = [{"id": name, "question": ""} | keys for name, keys in questions.items()]
        path = write("data.json", json.dumps({"data": [{"paragraphs": [{"context": "", "qas": qas}]}]}))
        return squad.read_squad(path, is_training=False).examples

    right = {"answers": [{"text": "x"}]}
    examples = data(a=right, b={"answers": []}, c={}, d={"is_impossible": True}, e=right)
    assert [example.is_impossible for example in examples] == [False, True, False, True, False]
    assert all(example.is_impossible for example in data(b={"answers": []}, d={"is_impossible": True}))
    answers = {"a": "x", "b": "", "c": "y", "d": "", "e": "z"}
    assert squad.evaluate_v1(examples, answers) == {"exact_match": 50.0, "f1": 50.0}
    assert "3 questions have no right answer and are not scored: b, c, d." in capsys.readouterr().err
    scores = squad.evaluate_v2(examples, answers)
    assert (scores["exact"], scores["total"], scores["NoAns_total"]) == (75.0, 4, 2)
    assert "1 questions have no right answer and are not scored: c." in capsys.readouterr().err
    assert not evaluation.has_answers(data(d={"is_impossible": True}), version_2_with_negative=False)
    assert not evaluation.has_answers(data(b={"answers": []}, c={}), version_2_with_negative=True)
    assert evaluation.has_answers(data(b={"answers": []}, e=right), version_2_with_negative=True)
