import json
import re

import numpy as np
import pytest

from bert_tf.tasks import original_api, squad
from bert_tf.tasks.squad import decoding
from bert_tf.tasks.squad.predictions import NO_WINDOW_SCORE, ScoredText
from tests.graphs.test_answers import tokenizer

LENGTHS = (64, 16, 8)


class Case:
    """Questions, their windows, and logits that tests can set."""

    def __init__(self, *examples, lengths=LENGTHS, answer_text="original"):
        self.examples = list(examples)
        self.config = squad.SquadConfig(*lengths, answer_text=answer_text)
        self.windows = squad.featurize(self.examples, tokenizer(), self.config, is_training=False)
        self.start = np.full([len(self.windows), lengths[0]], -10.0, np.float32)
        self.end = self.start.copy()

    def decode(self, **options):
        config = self.config.replace(**options)
        return squad.decode(self.examples, self.windows, self.start, self.end, config)

    def place(self, piece, window=0):
        """Returns the position of a token in a window."""
        ids = self.windows.batch(np.array([window]), LENGTHS[0])["input_ids"][0]
        tokens = tokenizer().convert_ids_to_tokens(ids.tolist())
        return tokens.index(piece, int(self.windows.first_lengths[window]))


def test_n_best_files_are_json_as_python_writes_it(tmp_path):
    logits = [0.0, -0.0, 1e22, 0.1, 0.1, np.float32(0.1).item(), 1e-7, -3.0]
    predictions = squad.SquadPredictions()
    predictions.add('"q"\u2028', [(f"\x07 é文\\ {i}", x, -x) for i, x in enumerate(logits)], 20)
    predictions.add("r", [("x", 1.0, 2.0)], 20, ScoredText("", 0.5, 0.25))
    files = [tmp_path / name for name in ("predictions", "nbest", "null_odds")]
    predictions.write(*map(str, files))
    for file, value in zip(files, (predictions.answers, predictions.n_best, predictions.null_odds), strict=True):
        assert file.read_text() == json.dumps(value, indent=4) + "\n"


def test_nothing_but_the_null_answer_among_the_n_best():
    case = Case(squad.make_example("q", "?", "one two"))
    case.start[0, 0] = case.end[0, 0] = 4.0
    case.start[0, case.place("two")] = case.end[0, case.place("two")] = 1.0
    assert case.decode(n_best_size=2, version_2_with_negative=True).null_odds == {"q": 6.0}
    predictions = case.decode(n_best_size=1, version_2_with_negative=True)
    assert predictions.n_best["q"] == [{"text": "", "probability": 1.0, "start_logit": 4.0, "end_logit": 4.0}]
    assert predictions.answers == predictions.best_non_null == {"q": ""}
    assert predictions.null_odds["q"] == NO_WINDOW_SCORE
    assert re.search("no candidate.* no answer: q$", *predictions.report())


@pytest.mark.parametrize("answer_text", ["original", "offsets"])
def test_contexts_without_tokens(answer_text, tmp_path):
    contexts = {"empty": "", "spaces": " \n", "invisible": "\u200b\u200b", "some": "one"}
    case = Case(*(squad.make_example(name, "?", text) for name, text in contexts.items()), answer_text=answer_text)
    assert case.windows.examples_without_windows() == [0, 1, 2]
    predictions = case.decode()
    assert predictions.answers == dict.fromkeys(contexts, "empty") | {"some": "one"}
    assert re.search("^3 of 4 .* the answer 'empty': empty, spaces, invisible$", *predictions.report())
    predictions = case.decode(version_2_with_negative=True)
    assert predictions.answers["empty"] == ""
    assert predictions.null_odds["empty"] == NO_WINDOW_SCORE
    assert predictions.n_best["empty"] == [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    for examples, expected in (([squad.make_example("q", "?", "")], {"q": "empty"}), ([], {})):
        predictions = Case(*examples).decode()
        predictions.write(str(tmp_path / "predictions"), str(tmp_path / "n_best"))
        assert json.loads((tmp_path / "predictions").read_text()) == expected
        assert json.loads((tmp_path / "n_best").read_text()).keys() == expected.keys()


def test_answers_do_not_depend_on_padding():
    examples = [squad.make_example(f"q{i}", "?", " ".join(["one", "two", "three"] * (1 + 4 * i))) for i in range(3)]
    case = Case(*examples)
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
def test_a_file_may_be_decoded_a_few_windows_at_a_time_and_infinite_logits_are_refused(monkeypatch, chunk_pairs):
    examples = [squad.make_example(f"q{i}", "?", " ".join(["one", "two", "three"] * (i % 4))) for i in range(12)]
    case = Case(*examples, lengths=(12, 4, 4))
    case.start, case.end = np.random.default_rng(0).normal(0, 3, [2, *case.start.shape])
    expected = case.decode(n_best_size=5, version_2_with_negative=True)
    monkeypatch.setattr(decoding, "_CHUNK_PAIRS", chunk_pairs)
    assert case.decode(n_best_size=5, version_2_with_negative=True) == expected
    bad = examples[case.windows.example_index[7]].qas_id
    for case.end[7, 2] in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=f"question '{bad}' has a logit"):
            case.decode(n_best_size=5)


def test_padding_takes_places_as_in_the_release():
    case = Case(squad.make_example("q", "?", "one two"))
    case.start[0, case.place("two")] = case.end[0, case.place("two")] = 1.0
    case.start[0, 60] = case.end[0, 61] = 9.0
    assert case.decode(n_best_size=1).answers == {"q": "two"}
    assert case.decode(n_best_size=1, pad_to_max_seq_length=True).answers == {"q": "empty"}


def test_unalignable_answers_are_named_on_demand(caplog):
    caplog.set_level("INFO", logger="absl")
    case = Case(squad.make_example("q", "?", "one\u200b two"))
    assert original_api.get_final_text("a b", "ab\u200b c", True) == "ab\u200b c"
    answers = case.decode().answers
    assert not caplog.records
    assert original_api.get_final_text("a b", "ab\u200b c", True, verbose_logging=True) == "ab\u200b c"
    assert case.decode(verbose_logging=True).answers == answers
    assert all(f"Can't align the prediction {text!r}" in caplog.text for text in ("a b", "one"))
