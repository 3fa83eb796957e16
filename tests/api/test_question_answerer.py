"""Tests questions, contexts and answers of `QuestionAnswerer`."""

import types

import numpy as np
import pandas as pd
import pytest

import bert_tf
from tests.conftest import assert_refused

pytestmark = pytest.mark.plain


@pytest.fixture
def answerer(pretrained):
    return bert_tf.QuestionAnswerer.from_pretrained(pretrained, max_seq_length=16, max_query_length=4)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (("fine", 2, 6), r"example 0 is \"\('fine', 2, 6\)\""),
        (("fine", None), "the answer of example 0 is"),
        (("fine", True), "the answer of example 0 is"),
        ((5, 0), "the answer of example 0 is"),
        (None, "example 0 is 'None'"),
        ({"text": ["fine"], "answer_start": []}, "the answer of example 0 is"),
        (" ", "example 0 is ' '"),
        ((" ", 1), "example 0 is ' '"),
        ("gone", "'gone' of example 0 is not in its context"),
        (("fine", 3), "'fine' of example 0 is not at character 3"),
        ("", r"example 0 has no answer.* version_2_with_negative=True"),
    ],
)
def test_answers_of_other_kinds_are_refused(answerer, answer, message):
    assert_refused(message, answerer.fit, [("fine words", "a fine day")], [answer])


def test_questions_and_contexts_are_found_by_name(answerer, tasks):
    question, context, answer = "fine words", "a fine day", {"text": ["fine"], "answer_start": np.array([2])}
    named = [{"id": "x", "context": context, "question": question, "answers": answer}] * 2
    frame = pd.DataFrame(named)
    validation = {"validation_data": ([(question, context)], ["fine"])}
    one = [{"text": "fine", "answer_start": np.int64(2)}, [{"text": "fine", "answer_start": 2}]]
    pairs = [(question, context)] * 2
    for x, y in ((pairs, ["fine"] * 2), (pairs, one), (named, None), (frame, None), (frame, frame["answers"])):
        answerer.fit(x, y, **validation)
    answerer.fit(frame[["context", "question"]], [answer] * 2, validation_data=(frame[:1], None))
    assert_refused("x has columns with the same name", answerer.fit, pd.concat([frame, frame[["question"]]], axis=1))
    answerer.fit(frame, validation_data=frame[:1])
    answerer.fit(named, validation_data=named[:1])
    written = [[task.examples("train_1"), task.examples("predict")] for task in tasks]
    assert written == written[:1] * 8
    answerer.fit(named, validation_data=named)
    assert len(tasks[-1].examples("predict")) == 2
    assert (written[0][0][0].question_text, written[0][0][0].context) == (question, context)
    assert_refused("example 0 has 'context', 'id'", answerer.fit, frame[["context", "id"]], ["fine"] * 2)


def test_of_several_answers_the_first_that_is_found_is_trained_on_and_the_best_one_counts(answerer, tasks):
    example = ("fine words", "a fine day")
    answerer.fit([example], [["gone", "day", ("fine", 2)]])
    assert tasks[0].examples("train_1")[0].orig_answer_text == "day"
    decoded = types.SimpleNamespace(answers={"0": "fine"})
    answerer._outputs = lambda *_: [types.SimpleNamespace(decode=lambda: decoded)]
    assert answerer.evaluate([example], [["gone", ("fine", 2)]]) == {"exact_match": 100.0, "f1": 100.0}
    assert answerer.evaluate([example], ["gone"])["f1"] == 0.0


@pytest.mark.eager
def test_questions_are_validated_as_rows_are(pretrained, tmp_path):
    contexts = ["a fine day here", "poor words a day"] * 4
    questions, answers = [("fine words", context) for context in contexts], ["fine", ""] * 4
    options = {"max_seq_length": 16, "doc_stride": 4, "max_query_length": 4, "version_2_with_negative": True}
    answerer = bert_tf.QuestionAnswerer.from_pretrained(pretrained, **options)
    selection = {"validation_data": (questions[:4], answers[:4]), "evaluate_every": 1, "use_best_checkpoint": True}
    scores = answerer.fit(questions, answers, num_train_steps=2, **selection)
    looked_at = [line["best_f1"] for line in answerer.history() if line["kind"] == "eval"]
    assert len(looked_at) == 2
    assert scores["best_f1"] == max(looked_at)
    answerer.save(str(tmp_path / "saved"))
    loaded = bert_tf.QuestionAnswerer.load(str(tmp_path / "saved"))
    assert len(loaded.predict_n_best(questions[:1])[0]) > 2
    assert (
        len(loaded.set_params(n_best_size=1).predict_n_best(questions[:1])[0]) == 2
    )  # the best answer and the empty answer
    loaded.set_params(max_seq_length=15).predict(questions[:1])
    assert loaded._model.settings.max_seq_length == 15
    assert loaded._model.task.null_score_diff_threshold == scores["best_f1_thresh"]
    assert_refused("need validation data", answerer.fit, questions, answers, early_stopping_patience=1)
