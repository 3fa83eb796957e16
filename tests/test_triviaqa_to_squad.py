import json
import re

import pytest

from bert_tf.tasks import squad
from examples import triviaqa_to_squad
from examples.triviaqa_to_squad import Paragraph, find_answer, read_paragraph
from tests import programs
from tests.conftest import assert_refused

ENGLAND = "England is a country.\n\nIt isn't an island: Saint\xa0Helena (“St. Helena”) is one, in the South Atlantic."
PARIS = "\ufeffParis, the capital of FRANCE, lies on the Seine.  Its mayor is Anne Hidalgo."


def entry(question_id, question, value, aliases, *pages):
    """Returns a question in the layout of qa/wikipedia-train.json."""
    return {
        "Answer": {"Aliases": aliases, "NormalizedAliases": [], "NormalizedValue": value.lower(), "Value": value},
        "EntityPages": [{"DocSource": "TagMe", "Filename": page, "Title": page[:-4]} for page in pages],
        "Question": question,
        "QuestionId": question_id,
        "QuestionSource": "http://example.org/",
    }


ENTRIES = [
    entry("tc_1", "Where was he banished?", "St Helena", ["Saint Helena", "saint helena", "St. Helena"], "England.txt"),
    entry("tc_2", "Which country?", "France", ["Fr", "France"], "Paris.txt", "England.txt", "Paris.txt"),
    entry("tc_3", "Who?", "Hidalgo", ["Anne Hidalgo", "Hidalgo", ""], "Paris.txt"),
    entry("tc_4", "Where?", "land", [], "England.txt"),
]


@pytest.fixture
def triviaqa(write, tmp_path):
    """Writes the questions and documents; returns the arguments of `convert`."""

    def write_all(entries, **documents):
        for name, text in ({"England": ENGLAND, "Paris": PARIS} | documents).items():
            if text is not None:
                write(f"evidence/wikipedia/{name}.txt", text)
        path = write("qa/wikipedia-train.json", json.dumps({"Data": entries, "Domain": "Wikipedia", "Version": 1.0}))
        return path, str(tmp_path / "evidence" / "wikipedia"), str(tmp_path / "out" / "squad.json")

    return write_all


def questions_in(path):
    with open(path, encoding="utf-8") as reader:
        articles = json.load(reader)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    return {qa["id"]: (p["context"], qa["answers"]) for p in paragraphs for qa in p["qas"]}


def test_documents_that_contain_an_answer_become_paragraphs(triviaqa):
    *inputs, output = triviaqa(ENTRIES)
    report = triviaqa_to_squad.convert(*inputs, output)
    questions = questions_in(output)
    assert list(questions) == ["tc_1--England.txt", "tc_2--Paris.txt", "tc_3--Paris.txt"]
    answers = [answer for _, (answer,) in questions.values()]
    assert [answer["text"] for answer in answers] == ["Saint\xa0Helena", "FRANCE", "Anne Hidalgo"]
    assert report.startswith("3 questions about 2 paragraphs, from 4 questions about 2 documents. 1 questions")
    data = squad.read_squad(output, is_training=True, config=squad.SquadConfig(answer_text="offsets"))
    assert (len(data.examples), data.dropped) == (3, {})


def test_only_the_beginning_counts(triviaqa):
    *inputs, output = triviaqa(ENTRIES)
    triviaqa_to_squad.convert(*inputs, output, max_num_tokens=7)
    assert list(questions_in(output)) == ["tc_2--Paris.txt"]
    assert questions_in(output)["tc_2--Paris.txt"][0] == "\ufeffParis, the capital of FRANCE,"
    message = r"no document of .* has an answer in the first"
    assert_refused(message, triviaqa_to_squad.convert, *inputs, output, max_num_tokens=5)
    assert "tc_2--Paris.txt" in questions_in(output)  # a failed run doesn't change the file


def test_paragraphs_end_with_their_last_token():
    spans = [(0, 2), (3, 6), (6, 7), (7, 8)]
    assert read_paragraph("It isn't  so.", 4) == Paragraph("It isn't", ["it", "isn", "'", "t"], spans)
    assert read_paragraph("It isn't  so.", 3).context == "It isn'"
    assert read_paragraph("Café\u0301 x ", 9).tokens == ["cafe", "x"]
    assert read_paragraph("", 9) == Paragraph("", [], [])


def test_the_first_and_then_the_longest_answer_is_taken():
    paragraph = read_paragraph("New York City, not York.", 400)
    assert find_answer(paragraph, [("york",), ("new", "york"), ("new", "york", "city")]) == ("New York City", 0)
    assert find_answer(paragraph, [("not", "york"), ("york",)]) == ("York", 4)
    assert find_answer(paragraph, [("yor",), ("city", "not")]) is None
    assert find_answer(paragraph, [("york", ".", "x")]) is None
    assert find_answer(paragraph, []) is None


NO_FILE = entry("tc_9", "?", "x", [], "Missing.txt")


@pytest.mark.parametrize(
    ("entries", "documents", "place", "found"),
    [
        ([ENTRIES[0] | {"EntityPages": None}], {}, "'tc_1'", "EntityPages"),
        ([ENTRIES[0] | {"Answer": None}], {}, "'tc_1'", "Answer"),
        ([ENTRIES[0] | {"QuestionId": 3}], {}, "Data[0]", "QuestionId"),
        ([ENTRIES[0] | {"EntityPages": [{"Title": "x"}]}], {}, "'tc_1'", "Filename"),
        ([ENTRIES[0], ENTRIES[0]], {}, "'tc_1'", "twice"),
        ([NO_FILE], {}, "--evidence_dir", "Missing.txt"),
        (ENTRIES, {"Paris": b"caf\xe9"}, "Paris.txt", "byte 3"),
        (None, {}, "--triviaqa_file", "'Data'"),
    ],
)
def test_bad_input_is_named(triviaqa, entries, documents, place, found):
    *inputs, output = triviaqa(entries, **documents)
    assert_refused(f"{re.escape(place)}.*{found}", triviaqa_to_squad.convert, *inputs, output)


def test_the_program(triviaqa):
    triviaqa_file, evidence_dir, output = triviaqa(ENTRIES)
    command = ["-m", "examples.triviaqa_to_squad", f"--triviaqa_file={triviaqa_file}"]
    command += [f"--evidence_dir={evidence_dir}", f"--output_file={output}"]
    assert "3 questions about 2 paragraphs" in programs.run(*command)
    assert len(questions_in(output)) == 3
    assert "--max_num_tokens" in programs.run(*command, "--max_num_tokens=0", expect=1)
