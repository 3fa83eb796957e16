import dataclasses
import json

import numpy as np
import pytest

from bert_tf.runtime.files import InputError
from bert_tf.tasks import squad
from bert_tf.tasks.squad import decoding
from bert_tf.tasks.squad.predictions import NO_WINDOW_SCORE, ScoredText
from bert_tf.tokenization import FullTokenizer
from tests.conftest import data_path, golden_path

LENGTHS = (64, 16, 8)


@pytest.fixture(scope="module")
def tokenizer():
    return FullTokenizer(str(golden_path("tokenization/vocab.txt")))


class Case:
    """Questions, their windows in both forms, and logits that can be set."""

    def __init__(self, tokenizer, *examples, lengths=LENGTHS, answer_text="release"):
        self.tokenizer = tokenizer
        self.examples = list(examples)
        self.config = squad.SquadConfig(*lengths, answer_text=answer_text)
        self.windows = squad.featurize(self.examples, tokenizer, self.config, is_training=False)
        self.features = []
        squad.convert_examples_to_features(
            self.examples, tokenizer, *lengths, is_training=False, output_fn=self.features.append
        )
        self.start = np.full([len(self.windows), lengths[0]], -10.0, np.float32)
        self.end = self.start.copy()

    def decode(self, **options):
        config = dataclasses.replace(self.config, **options)
        return squad.decode(self.examples, self.windows, self.start, self.end, self.tokenizer, config)

    def place(self, piece, window=0):
        """Where a piece stands in a window."""
        return self.features[window].tokens.index(piece, int(self.windows.first_lengths[window]))

    def written(self, folder, n_best_size, max_answer_length, version_2_with_negative, threshold):
        """The files of the release's function."""
        columns = zip(self.windows.unique_ids.tolist(), self.start.tolist(), self.end.tolist(), strict=True)
        files = [folder / name for name in ("predictions.json", "nbest.json", "null_odds.json")]
        squad.write_predictions(
            self.examples,
            self.features,
            [squad.RawResult(*result) for result in columns],
            n_best_size,
            max_answer_length,
            self.tokenizer.do_lower_case,
            *map(str, files),
            version_2_with_negative=version_2_with_negative,
            null_score_diff_threshold=threshold,
        )
        return [file.read_bytes() for file in files[: 2 + version_2_with_negative]]


def test_right_spans_give_the_right_answers_in_chinese(tokenizer):
    data = squad.read_squad(
        str(data_path("xquad/xquad.zh.json")), is_training=True, config=squad.SquadConfig(answer_text="offsets")
    )
    examples = data.examples[:300]
    config = squad.SquadConfig(n_best_size=3, max_answer_length=99, answer_text="offsets")
    windows = squad.featurize(examples, tokenizer, config, is_training=True)
    logits = np.full([2, len(windows), 384], -50.0, np.float32)
    for x, name in zip(logits, ("start_positions", "end_positions"), strict=True):
        positions = windows.per_example[name]
        x[np.arange(len(windows)), positions] = np.where(positions, 5.0, -50.0)
    answers = {
        answer_text: squad.decode(
            examples, windows, *logits, tokenizer, dataclasses.replace(config, answer_text=answer_text)
        ).answers
        for answer_text in ("release", "offsets")
    }
    right = {example.qas_id: example.orig_answer_text for example in examples}
    assert answers["offsets"] == right
    # Characters that the vocabulary lacks can't be found again, so the release gives whole sentences.
    assert sum(answers["release"][qas_id] == text for qas_id, text in right.items()) < 0.9 * len(right)


def test_offsets_are_kept_only_on_demand(tokenizer):
    with pytest.raises(ValueError, match="were made without answer_text='offsets'"):
        Case(tokenizer, squad.make_example("q", "?", "one")).decode(answer_text="offsets")


def test_n_best_files_are_json_as_python_writes_it(tmp_path):
    logits = [0.0, -0.0, 1e22, 0.1, 0.1, np.float32(0.1).item(), 1e-7, -3.0]
    predictions = squad.SquadPredictions()
    predictions.add('"q"\u2028', [(f"\x07 é文\\ {i}", x, -x) for i, x in enumerate(logits)], 20)
    predictions.add("r", [("x", 1.0, 2.0)], 20, ScoredText("", 0.5, 0.25))
    files = [tmp_path / name for name in ("predictions", "nbest", "null_odds")]
    predictions.write(*map(str, files))
    for file, value in zip(files, (predictions.answers, predictions.n_best, predictions.null_odds), strict=True):
        assert file.read_text() == json.dumps(value, indent=4) + "\n"


def test_differences_are_reported():
    lines = squad.report_differences({"a": "x", "b": "y z", "c": ""}, {"a": "x", "b": "y\xa0z", "c": ""})
    assert lines[0].startswith("1 of 3 answers (33.3%) differ")
    assert lines[1:] == [r"  b: 'y z' / 'y\xa0z'"]


def test_equal_scores_keep_the_order_in_which_they_are_found(tokenizer):
    case = Case(tokenizer, squad.make_example("q", "?", "one two three four"))
    for piece in ("two", "four"):
        case.start[0, case.place(piece)] = case.end[0, case.place(piece)] = 1.0
    case.start[0, case.place("three")] = case.end[0, case.place("three")] = 1.0
    texts = [entry["text"] for entry in case.decode(n_best_size=3).n_best["q"]]
    assert texts == ["two", "two three", "two three four"]


def test_n_best_of_version_2_may_have_one_entry_more(tokenizer):
    case = Case(tokenizer, squad.make_example("q", "?", "one two three four"))
    case.start[0, case.place("two")] = case.end[0, case.place("two")] = 1.0
    case.start[0, case.place("one")] = 0.0
    predictions = case.decode(n_best_size=2, version_2_with_negative=True)
    assert [entry["text"] for entry in predictions.n_best["q"]] == ["two", "one two", ""]
    assert sum(entry["probability"] for entry in predictions.n_best["q"]) == pytest.approx(1.0)
    assert predictions.null_odds == {"q": -22.0}
    assert predictions.with_threshold(-22.5) == {"q": ""}
    assert predictions.with_threshold(-22.0) == {"q": "two"}


def test_null_score_is_the_lowest_of_all_windows(tokenizer):
    case = Case(tokenizer, squad.make_example("q", "?", "one two three four five"), lengths=(6, 2, 1))
    assert len(case.windows) > 2
    case.start[:, 0] = [3.0, -1.0, *[2.0] * (len(case.windows) - 2)]
    case.end[:, 0] = 1.0
    (entry,) = (e for e in case.decode(version_2_with_negative=True).n_best["q"] if not e["text"])
    assert (entry["start_logit"], entry["end_logit"]) == (-1.0, 1.0)


def test_nothing_but_the_null_answer_among_the_n_best(tokenizer, tmp_path):
    case = Case(tokenizer, squad.make_example("q", "?", "one two"))
    case.start[0, 0] = case.end[0, 0] = 4.0
    case.start[0, case.place("two")] = case.end[0, case.place("two")] = 1.0
    assert case.decode(n_best_size=2, version_2_with_negative=True).null_odds == {"q": 6.0}
    predictions = case.decode(n_best_size=1, version_2_with_negative=True)
    assert predictions.n_best["q"] == [{"text": "", "probability": 1.0, "start_logit": 4.0, "end_logit": 4.0}]
    assert predictions.answers == {"q": ""}
    assert predictions.null_odds["q"] == NO_WINDOW_SCORE
    assert predictions.best_non_null == {"q": ""}
    assert predictions.report() == ["1 of 1 questions have no candidate among the n best, and get no answer: q"]
    assert case.written(tmp_path, 1, 30, True, 0.0)[2] == b'{\n    "q": 1000000.0\n}\n'


@pytest.mark.parametrize("context", ["", " \n", "\u200b\u200b"])
def test_contexts_without_tokens(tokenizer, context, tmp_path):
    for answer_text in ("release", "offsets"):
        case = Case(
            tokenizer,
            squad.make_example("none", "?", context),
            squad.make_example("some", "?", "one"),
            answer_text=answer_text,
        )
        assert case.windows.examples_without_windows() == [0]
        predictions = case.decode(answer_text=answer_text)
        assert predictions.answers == {"none": "empty", "some": "one"}
        assert predictions.report() == [
            "1 of 2 questions have no candidate among the n best, and get the answer 'empty': none"
        ]
        predictions = case.decode(answer_text=answer_text, version_2_with_negative=True)
        assert predictions.answers["none"] == ""
        assert predictions.null_odds["none"] == NO_WINDOW_SCORE
        assert predictions.with_threshold(1e9)["none"] == ""
        assert predictions.n_best["none"] == [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    assert json.loads(case.written(tmp_path, 20, 30, False, 0.0)[0]) == {"none": "empty", "some": "one"}


def test_files_without_any_question_or_token(tokenizer, tmp_path):
    assert Case(tokenizer).decode().answers == {}
    case = Case(tokenizer, squad.make_example("q", "?", ""))
    case.decode().write(str(tmp_path / "p"), str(tmp_path / "n"))
    assert json.loads((tmp_path / "n").read_text())["q"][0]["text"] == "empty"
    Case(tokenizer).decode().write(str(tmp_path / "p"), str(tmp_path / "n"))
    assert (tmp_path / "n").read_text() == "{}\n"


def test_answers_do_not_depend_on_padding(tokenizer):
    examples = [squad.make_example(f"q{i}", "?", " ".join(["one", "two", "three"] * (1 + 4 * i))) for i in range(3)]
    case = Case(tokenizer, *examples)
    rng = np.random.default_rng(0)
    case.start, case.end = rng.normal(0, 3, [2, *case.start.shape])
    expected = case.decode()
    for padding in (0.0, 50.0, np.nan, -np.inf):
        for x in (case.start, case.end):
            for row, length in zip(x, case.windows.lengths, strict=True):
                row[length:] = padding
        assert case.decode() == expected
    with pytest.raises(ValueError, match="'q0' has a logit that isn't a finite number"):
        case.decode(pad_to_max_seq_length=True)
    longest = int(case.windows.lengths.max())
    case.start, case.end = case.start[:, :longest], case.end[:, :longest]
    assert case.decode() == expected


@pytest.mark.parametrize("chunk_pairs", [1, 70])
def test_a_file_may_be_decoded_a_few_windows_at_a_time(tokenizer, monkeypatch, chunk_pairs):
    examples = [squad.make_example(f"q{i}", "?", " ".join(["one", "two", "three"] * (i % 4))) for i in range(12)]
    case = Case(tokenizer, *examples, lengths=(12, 4, 4))
    case.start, case.end = np.random.default_rng(0).normal(0, 3, [2, *case.start.shape])
    expected = case.decode(n_best_size=5, version_2_with_negative=True)
    monkeypatch.setattr(decoding, "_CHUNK_PAIRS", chunk_pairs)
    assert case.decode(n_best_size=5, version_2_with_negative=True) == expected
    case.end[7, 2] = np.nan
    bad = examples[case.windows.example_index[7]].qas_id
    with pytest.raises(ValueError, match=f"question '{bad}' has a logit"):
        case.decode(n_best_size=5)


def test_padding_takes_places_as_in_the_release(tokenizer):
    case = Case(tokenizer, squad.make_example("q", "?", "one two"))
    case.start[0, case.place("two")] = case.end[0, case.place("two")] = 1.0
    case.start[0, 60] = case.end[0, 61] = 9.0
    assert case.decode(n_best_size=1).answers == {"q": "two"}
    assert case.decode(n_best_size=1, pad_to_max_seq_length=True).answers == {"q": "empty"}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused(tokenizer, value):
    case = Case(tokenizer, squad.make_example("q1", "?", "one two"), squad.make_example("q2", "?", "three"))
    case.end[1, 2] = value
    with pytest.raises(ValueError, match="question 'q2' has a logit"):
        case.decode()


def test_logits_of_other_windows_are_refused(tokenizer):
    case = Case(tokenizer, squad.make_example("q1", "?", "one two"))
    for start, end in [(case.start[:0], case.end[:0]), (case.start, case.end[:, :9]), (case.start[:, :3],) * 2]:
        with pytest.raises(ValueError, match="don't fit the windows"):
            squad.decode(case.examples, case.windows, start, end, tokenizer)
    with pytest.raises(ValueError, match="those of 1 questions, not 2"):
        squad.decode(case.examples * 2, case.windows, case.start, case.end, tokenizer)


@pytest.mark.parametrize("name", ["n_best_size", "max_answer_length"])
def test_sizes_below_one_are_refused(tokenizer, name):
    with pytest.raises(InputError, match=f"--{name} is 0"):
        Case(tokenizer, squad.make_example("q", "?", "one")).decode(**{name: 0})


def test_unalignable_answers_are_named_on_demand(caplog):
    caplog.set_level("INFO", logger="absl")
    assert squad.get_final_text("a b", "ab\u200b c", True) == "ab\u200b c"
    assert not caplog.records
    assert squad.get_final_text("a b", "ab\u200b c", True, verbose_logging=True) == "ab\u200b c"
    assert "Can't align the prediction 'a b'" in caplog.text


def test_decoding_names_them_too(caplog, tokenizer):
    caplog.set_level("INFO", logger="absl")
    case = Case(tokenizer, squad.make_example("q", "?", "one\u200b two"))
    assert case.decode().answers == case.decode(verbose_logging=True).answers
    assert "Can't align the prediction 'one'" in caplog.text
