"""Passes files with the same small faults to every data reader. The texts must be read correctly or refused."""

import gzip
import io
import json
import re

import pyarrow.parquet
import pytest

from bert_tf import features
from bert_tf.serving import line_predictions
from bert_tf.serving.answering import Input, Predictor
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.registry import build_task
from bert_tf.tasks.sentences.glue import GlueReader
from bert_tf.tasks.sentences.multiple_choice import ChoiceReader
from bert_tf.tasks.squad.questions import read_squad
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from data_prep.corpus.files import cut_into_splits, find_input_files
from data_prep.corpus.reader import CorpusOptions, CorpusReader
from tests.conftest import assert_refused


def text(path):
    task = build_task(DataConfig("text", train_file=path), "", do_train=True)
    return [example.text_a for example in task.examples("train")]


def glue(path):
    reader = GlueReader("sst-2", "")
    reader.sources["train"] = path
    return [example.text_a for example in reader.examples("train")]


def choice(path):
    return [example.prompt for example in ChoiceReader("multiple_choice", {"train": path}).examples("train")]


def tags(path):
    return [" ".join(sentence.words) for sentence in TaggingTask(DataConfig("ner"), {"train": path}).examples("train")]


def squad(path):
    return [example.question_text for example in read_squad(path, is_training=False).examples]


def lines(path):
    return [text for text, _ in features.read_examples(path) if text]


def corpus(path):
    (pieces,) = cut_into_splits(find_input_files(path), "auto")
    read = [CorpusReader(CorpusOptions()).sentences(piece) for piece in pieces]
    return [sentence for sentences in read for sentence in sentences if sentence is not None]


class Echo(Predictor):
    """Returns the text as the answer."""

    def _answer(self, examples):
        return examples


def predict(path):
    writer = io.StringIO()
    with open(path, "rb") as file:
        line_predictions.answer_lines(Echo({"text": Input(str)}), file, writer, 8)
    return [answer.get("text", answer.get("error")) for answer in map(json.loads, writer.getvalue().splitlines())]


def jsonl(**columns):
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return "".join(json.dumps(row) + "\n" for row in rows)


ONE, TWO = "one fine day", 'a "poor" day'
QUESTIONS = [{"id": str(number), "question": text} for number, text in enumerate((ONE, TWO))]
SQUAD = {"data": [{"paragraphs": [{"context": "x", "qas": QUESTIONS}]}]}
# Reader -> the function, the name of the file, and the content.
READERS = {
    "tsv": (text, "train.tsv", f"text\tlabel\n{ONE}\tx\n{TWO}\ty\n"),
    "csv": (text, "train.csv", f'text,label\n{ONE},x\n"a ""poor"" day",y\n'),
    "jsonl": (text, "train.jsonl", jsonl(text=(ONE, TWO), label="xy")),
    "glue": (glue, "train.tsv", f"sentence\tlabel\n{ONE}\t0\n{TWO}\t1\n"),
    "choice tsv": (choice, "train.tsv", f"prompt\tending0\tending1\tlabel\n{ONE}\ta\tb\t0\n{TWO}\ta\tb\t1\n"),
    "choice jsonl": (choice, "train.jsonl", jsonl(prompt=(ONE, TWO), endings=(("a", "b"),) * 2, label=(0, 1))),
    "tags": (tags, "train.txt", 'one O\nfine B-X\nday O\n\na O\n"poor" B-X\nday O\n'),
    "squad": (squad, "dev.json", json.dumps(SQUAD) + "\n"),
    "lines": (lines, "lines.txt", f"{ONE}\n{TWO}\n"),
    "corpus": (corpus, "corpus.txt", f"{ONE}\n{TWO}\n"),
    "corpus jsonl": (corpus, "corpus.jsonl", jsonl(text=(ONE, TWO))),
    "predict": (predict, "lines.jsonl", jsonl(text=(ONE, TWO))),
}
JSON = ("jsonl", "choice jsonl", "squad", "corpus jsonl", "predict")
BLANK, SAME = "the line is blank", [ONE, TWO]


def with_two_labels(data):
    """Repeats the columns of texts and labels."""
    data = re.sub(rb'"(text|prompt|question)"', rb'"\1": "", \g<0>', data)
    return re.sub(rb"([\t,])label\n", rb"\1label\1label\n", data)


# Fault -> the change of a file.
CHANGES = {
    "byte-order mark": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "no final newline": lambda data: data.removesuffix(b"\n"),
    "blank first line": lambda data: b"\n" + data,
    "blank last line": lambda data: data + b"\n",
    "blank middle lines": lambda data: data.replace(b"\n", b"\n\n"),
    "tab in a text": lambda data: data.replace(b"one fine", b"one\tfine"),
    "duplicate columns": with_two_labels,
    "NaN": lambda data: data.replace(b'"one fine day"', b"NaN"),
    "number": lambda data: data.replace(b'"one fine day"', b"5"),
    "list": lambda data: data.replace(b'"one fine day"', b'["one", "two"]'),
    "empty": lambda data: b"",
    "compressed": gzip.compress,
    "truncated gzip": lambda data: gzip.compress(data)[:-9],
    "zip": lambda data: b"PK\x03\x04" + data,
    "not UTF-8": lambda data: data.replace(b"fine", b"f\xffne"),
    "NUL": lambda data: data.replace(b"fine", b"fi\0ne"),
    "half of a surrogate pair": lambda data: data.replace(b"fine", b"fi\\ud83dne"),
}
# Fault -> results other than the same texts: texts, or an error with these words. "all" is for the readers not listed.
RESULTS = {
    "UTF-16": {"corpus": "UTF-16", "corpus jsonl": "UTF-16", "predict": None},
    "CR": {"predict": ["Extra data"]},
    "blank first line": {"predict": [BLANK, *SAME]},
    "blank last line": {"predict": [*SAME, BLANK]},
    "blank middle lines": {"tags": [*ONE.split(), *TWO.split()], "predict": [ONE, BLANK, TWO, BLANK]},
    "tab in a text": {
        "all": ["one\tfine day", TWO],
        "tsv": "line 2: the row has 3 columns",
        "glue": "line 2: the label 'fine day' is unknown",
        "choice tsv": "line 2: the row has 5 columns",
        "tags": SAME,
        **dict.fromkeys(("jsonl", "choice jsonl", "squad"), "not valid JSON"),
        "predict": ["not valid JSON", TWO],
    },
    "duplicate columns": {
        "all": "line 1: several columns have the name 'label'",
        **dict.fromkeys(JSON, "occurs twice in an object"),
        **dict.fromkeys(("tags", "lines", "corpus", "corpus jsonl"), SAME),
        "predict": ["occurs twice", "occurs twice"],
    },
    "NaN": {**dict.fromkeys(JSON, "NaN"), "corpus jsonl": [TWO], "predict": ["NaN", TWO]},
    "number": {
        "jsonl": ["5", TWO],
        "choice jsonl": ["5", TWO],
        "squad": "got `int`",
        "corpus jsonl": [TWO],
        "predict": ["must be text, not 5", TWO],
    },
    "list": {
        "jsonl": r"line 1: the text \('text'\) is a list",
        "choice jsonl": "line 1: the prompt is not a text",
        "squad": "got `array`",
        "corpus jsonl": [TWO],
        "predict": ["must be text, not", TWO],
    },
    "empty": {"all": "empty", "predict": []},
    "compressed": {"predict": None},
    "truncated gzip": {"all": "can't be (unpacked|decompressed)", "predict": None},
    "zip": {"all": "zip", "predict": ["not valid JSON", TWO]},
    "not UTF-8": {"all": "0xff", "corpus": [TWO], "corpus jsonl": [TWO], "predict": ["0xff", TWO]},
    "NUL": {
        "all": ["one fi\0ne day", TWO],
        **dict.fromkeys(JSON, "not valid JSON"),
        **dict.fromkeys(("corpus", "corpus jsonl"), SAME),
        "predict": ["not valid JSON", TWO],
    },
    "half of a surrogate pair": {
        "all": ["one fi\\ud83dne day", TWO],  # not JSON, so no escape
        **dict.fromkeys(JSON, "surrogate"),
        "corpus jsonl": SAME,
        "predict": ["one fi\ud83dne day", TWO],
    },
}


TABLE = [{"id": 7, "text": "the whale swam"}, {"id": 8, "text": "it was white, and big"}]
PARQUET = io.BytesIO()
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(TABLE), PARQUET)
# Format that readers of plain lines refuse -> the file, and words in the message.
OTHER_FORMATS = {
    "JSON lines": (jsonl(id=(7, 8), text=(ONE, TWO)).encode(), "JSON"),
    "JSON records": (json.dumps(TABLE).encode(), "JSON"),
    "indented JSON": (json.dumps(TABLE, indent=2).encode(), "JSON"),
    "JSON object": (json.dumps(SQUAD, indent=1).encode(), "JSON"),
    "CSV": (b'id,text\n7,the whale\n8,"it was white, and big"\n', "a table with commas"),
    "CSV of words": (b"sentence_id,words,labels\n0,Ada,B-PER\n0,lives,O\n", "a table with commas"),
    "CSV with spaces": (b"Review ID;Review Text\n7;a fine day\n8;a poor day\n", "a table with semicolons"),
    "TSV": (b"id\ttext\n7\tthe whale\n8\tthe ship\n", "a table with tabs"),
    "Parquet": (PARQUET.getvalue(), "Parquet"),
    "zip": (b"PK\x03\x04\0\0", "zip"),
}
# Texts that look like a table but are plain text.
LINES = (
    "Hello, world\nGood, bad, and ugly\n",
    "red,green\nblue,yellow\n",
    "yes,no\nI came, I saw, I won\n",
    "[1] a note\n{braces} and more\n",
    "one ||| two\nthree ||| four\n",
    '"quoted", he said\n"again", she said\n',
    "one line,with a comma\n",
)


@pytest.mark.parametrize("fault", OTHER_FORMATS)
@pytest.mark.parametrize("reader", ["lines", "corpus", "codah", "glue"])
def test_lines_are_not_read_from_other_formats(tmp_path, reader, fault):
    content, message = OTHER_FORMATS[fault]
    (tmp_path / "file.txt").write_bytes(content)
    path = str(tmp_path / "file.txt")
    codah = ChoiceReader("codah", {"train": path})
    if reader == "corpus" and fault in ("JSON lines", "Parquet"):  # data preparation reads these formats
        assert len(list(filter(None, corpus(path)))) == 2
        return
    message = "the column 'sentence' is missing" if (reader, fault) == ("glue", "TSV") else message
    readers = {"lines": lines, "corpus": corpus, "glue": glue, "codah": lambda _: codah.examples("train")}
    assert_refused(message, readers[reader], path)


@pytest.mark.parametrize("content", LINES)
def test_texts_with_commas_and_brackets_are_lines(write, content):
    path = write("file.txt", content)
    assert len(lines(path)) == content.count("\n")
    assert corpus(path)


@pytest.mark.parametrize("fault", CHANGES)
@pytest.mark.parametrize("reader", READERS)
def test_faults_of_files(write, reader, fault):
    read, name, content = READERS[reader]
    results = {"all": SAME} | RESULTS.get(fault, {})
    expected = results.get(reader, results["all"])
    path = write(name, CHANGES[fault](content.encode()))
    if expected is None:  # each line is an error
        assert not set(SAME) & set(read(path))
    elif isinstance(expected, str):
        assert_refused(expected, read, path)
    else:
        for found, right in zip(read(path), expected, strict=True):
            assert found == right or (reader == "predict" and right in found)
