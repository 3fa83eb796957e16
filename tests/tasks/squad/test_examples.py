import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from bert_tf.tasks import original_api, squad
from bert_tf.tasks.squad.questions import split_context
from tests.conftest import assert_refused

CONTEXT = "The Normans came from Norway in 911, and Rollo led them."


def question(qas_id="q1", text="When?", answer="911", start=None, **more):
    """Returns a question about CONTEXT, without a correct answer if `answer` is None."""
    entry = {"id": qas_id, "question": text, **more}
    if answer is not None:
        entry["answers"] = [{"text": answer, "answer_start": CONTEXT.find(answer) if start is None else start}]
    return entry


@pytest.fixture
def squad_file(write):
    """Writes a file with questions about one context."""

    def write_questions(*questions, context=CONTEXT):
        data = [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]
        return write("squad.json", json.dumps({"version": "1.1", "data": data}))

    return write_questions


def test_words_end_where_the_release_ends_them():
    assert split_context(" a\xa0b\tc\u202fd\r\ne\u3000f  ") == ["a\xa0b", "c", "d", "e\u3000f"]
    assert split_context(" \n") == []


def test_examples_share_the_words_of_their_paragraph(squad_file):
    first, second = original_api.read_squad_examples(squad_file(question("a"), question("b", answer="Rollo")), True)
    assert first.doc_tokens is second.doc_tokens
    assert (first.start_position, first.end_position, first.orig_answer_text) == (6, 6, "911")
    assert (second.start_position, second.end_position) == (8, 8)
    assert (first.context, first.answer_offset) == (CONTEXT, 32)


def test_answers_that_are_not_at_their_place_are_counted_and_named(squad_file):
    path = squad_file(
        question("right"),
        question("elsewhere", answer="Rollo", start=4),
        question("outside", start=10_000),
        question("absent", answer="Vikings", start=4),
        question("before", answer="Rollo", start=-1),
    )
    data = squad.read_squad(path, is_training=True)
    assert [example.qas_id for example in data.examples] == ["right"]
    assert list(data.dropped) == ["elsewhere", "outside", "absent", "before"]
    report = "\n".join(data.report())
    assert "3 of 5 questions dropped" in report
    assert "1 of 5 questions dropped, because the answer's position is outside the context: outside" in report


def test_offsets_are_mended_only_on_demand(squad_file):
    path = squad_file(
        question("left", start=30),
        question("right", start=35),
        question("far", answer="Rollo", start=10_000),
        question("absent", answer="Vikings", start=4),
        question("fine"),
    )
    for answer_text in ("original", "offsets"):
        data = squad.read_squad(
            path, is_training=True, config=squad.SquadConfig(answer_text=answer_text, fix_answer_offsets=True)
        )
        assert [example.answer_offset for example in data.examples] == [32, 32, CONTEXT.find("Rollo"), 32]
        assert data.realigned == ["left", "right", "far"]
        assert list(data.dropped) == ["absent"]
        assert "3 of 5 questions used with a corrected answer offset: left, right, far" in data.report()
    strict = squad.read_squad(path, is_training=True, config=squad.SquadConfig(answer_text="offsets"))
    assert [example.qas_id for example in strict.examples] == ["fine"]


def test_the_nearest_place_is_taken(squad_file):
    path = squad_file(question(answer="and", start=19), context="and sand sandy and")
    (example,) = squad.read_squad(path, is_training=True, config=squad.SquadConfig(fix_answer_offsets=True)).examples
    assert example.answer_offset == 15


@pytest.mark.parametrize("answer", ["people\xa0lived", "in\u30001850"])
def test_answers_with_white_space_that_the_release_drops_are_kept_by_offsets(squad_file, answer):
    context = "About 12\u202f000 people\xa0lived  here in\u30001850."
    path = squad_file(question(answer=answer, start=context.find(answer)), context=context)
    assert_refused(r"no usable question.*\n?.*q1", squad.read_squad, path, is_training=True)
    data = squad.read_squad(path, is_training=True, config=squad.SquadConfig(answer_text="offsets"))
    assert data.examples[0].orig_answer_text == answer


def test_blank_questions_and_contexts_are_used_and_named(squad_file):
    assert squad.read_squad(squad_file(question(text=" ")), is_training=False).blank == ["q1"]
    data = squad.read_squad(squad_file(question(), context=" \n"), is_training=False)
    assert (data.blank, len(data.examples)) == (["q1"], 1)
    assert data.report() == ["1 of 1 questions used, though the question or the context is blank: q1"]


def test_contexts_without_words_are_not_trained_on(squad_file):
    path = squad_file(question(answer=" ", start=0), context=" ")
    assert_refused(r"(?s)no usable question.*no words: q1$", squad.read_squad, path, is_training=True)


def test_long_lists_of_ids_are_cut(squad_file):
    questions = [question(f"q{i}", answer="Vikings", start=0) for i in range(14)]
    report = squad.read_squad(squad_file(*questions, question("fine")), is_training=True).report()
    assert report[0].startswith("14 of 15 questions dropped")
    assert report[0].endswith("q7 and 6 more")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "object"),
        ('{"Data": []}', "`data`"),
        ('{"data": [{"title": 1}]}', r"at data\[0\]: .*`paragraphs`"),
        ('{"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}', r"paragraphs\[0\]\.context: "),
        ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 7, "question": "?"}]}]}]}', r"qas\[0\]\.id: "),
        ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "a"}]}]}]}', r"qas\[0\]: .*`question`"),
        ('{"data": []}', "no usable question"),
    ],
)
def test_files_of_another_shape_are_refused(write, content, message):
    assert_refused(message, squad.read_squad, write("squad.json", content), is_training=False)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (question("x", answer=None), "question 'x': 'answers'"),
        ({**question("x"), "answers": []}, "question .x. is impossible or has no answer .*negative=True"),
        ({**question("x"), "answers": question()["answers"] * 3}, "question 'x': 'answers'"),
        ({**question("x"), "answers": ["911"]}, r"answers\[0\]: "),
        (question("x", start=True), r"answers\[0\]\.answer_start: "),
        (question("x", answer=""), "question 'x': 'answers'"),
    ],
)
def test_training_questions_need_one_answer(squad_file, entry, message):
    assert_refused(message, squad.read_squad, squad_file(entry), is_training=True)


VERSION_2 = squad.SquadConfig(version_2_with_negative=True)


@pytest.mark.parametrize("marked", [{"is_impossible": True}, {}])
def test_questions_of_both_versions_are_read_together(squad_file, marked):
    impossible = {**question("x", answer=None), "answers": [], **marked}
    path = squad_file(question("a"), impossible, {**question("b"), "is_impossible": False})
    for read in (squad.read_squad, original_api.read_squad_examples):
        with pytest.raises(ValueError, match=r"question 'x' is impossible or has no .*--version_2_with_negative=True"):
            read(path, is_training=True)
    as_advised = squad.read_squad(path, is_training=True, config=VERSION_2).examples
    assert [(x.qas_id, x.is_impossible) for x in as_advised] == [("a", False), ("x", True), ("b", False)]
    assert len(original_api.read_squad_examples(path, True, version_2_with_negative=True)) == 3
    for config in (VERSION_2, squad.SquadConfig()):
        assert len(squad.read_squad(path, is_training=False, config=config).examples) == 3
    assert len(squad.read_squad(squad_file(question()), is_training=True, config=VERSION_2).examples) == 1


def test_tables_of_questions_are_read(write, tmp_path):
    answers = {"text": ["He"], "answer_start": [0]}
    rows = [
        {"id": "a", "context": "He sat.", "question": "Who?", "answers": answers},
        {"id": "b", "context": "He sat.", "question": "Why?", "answers": {"text": [], "answer_start": []}},
    ]
    listed = [{**rows[0], "answers": [{"text": "He", "answer_start": 0}]}, {**rows[1], "answers": []}]
    parquet = str(tmp_path / "train.parquet")
    pa.parquet.write_table(pa.Table.from_pylist(rows), parquet)
    paths = [
        parquet,
        write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)),
        write("a.json", json.dumps(rows)),
        write("b.json", json.dumps(listed, indent=1)),
        write("c.json", json.dumps({"version": "1.1", "data": rows}, indent=1)),
        write("d.json", json.dumps([rows[0] | {"answers": {"text": "He", "answer_start": 0}}, rows[1]])),
    ]
    for path in paths:
        examples = squad.read_squad(path, is_training=True, config=VERSION_2).examples
        assert [(x.qas_id, x.question_text, x.orig_answer_text, x.is_impossible) for x in examples] == [
            ("a", "Who?", "He", False),
            ("b", "Why?", "", True),
        ]
    wrong = {"text": ["He"], "answer_start": []}
    path = write("e.json", json.dumps([rows[0] | {"answers": wrong}]))
    assert_refused("line 1: the lists in 'answers' have different lengths", squad.read_squad, path, is_training=True)
    (example,) = squad.read_squad(write("q.csv", "question,context\nWho?,He sat.\n"), is_training=False).examples
    assert (example.qas_id, example.question_text, example.context) == ("2", "Who?", "He sat.")


def test_other_answers_than_the_marked_ones_are_named(squad_file):
    before, inside = question("a", start=31), question("b", start=33)
    path = squad_file(before, inside, question("c"), question("d", is_impossible=True))
    data = squad.read_squad(path, is_training=True, config=VERSION_2)
    assert [x.start_position for x in data.examples] == [5, 6, 6, -1]
    assert data.report() == [
        "1 of 4 questions used with other words next to the answer (--fix_answer_offsets corrects the offset): a",
        "1 of 4 questions impossible, so their answers are not used: d",
    ]
    corrected = squad.SquadConfig(version_2_with_negative=True, fix_answer_offsets=True)
    data = squad.read_squad(path, is_training=True, config=corrected)
    assert [x.start_position for x in data.examples] == [6, 6, 6, -1] and not data.shifted


def test_ids_must_differ(squad_file):
    assert_refused("'q1' occurs twice", squad.read_squad, squad_file(question(), question()), is_training=False)


def test_a_missing_file_is_named_with_its_own_flag(tmp_path):
    for flag, is_training in (("--train_file", True), ("--predict_file", False)):
        assert_refused(f"^{flag}: there is no file", squad.read_squad, str(tmp_path / "missing.json"), is_training)
