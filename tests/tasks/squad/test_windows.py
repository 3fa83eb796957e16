import numpy as np
import pytest

from bert_tf.runtime.files import InputError
from bert_tf.tasks import original_api, squad
from bert_tf.tasks.squad import windows
from bert_tf.text import FullTokenizer
from tests.conftest import assert_refused, golden_path
from tests.graphs.test_answers import tokenizer as real_tokenizer

SPECIAL = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n"


@pytest.fixture
def letters(write):
    """Returns a tokenizer for words of letters, with one token per letter."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return FullTokenizer(write("vocab.txt", SPECIAL + "\n".join([*letters, *(f"##{x}" for x in letters), "?", "."])))


def training_example(context, answer, offset=None, qas_id="q"):
    example = squad.make_example(qas_id, "a?", context)
    offset = context.index(answer) if offset is None else offset
    example.orig_answer_text, example.answer_offset = answer, offset
    return example


def features_of(examples, tokenizer, *lengths, is_training=False):
    features = []
    original_api.convert_examples_to_features(examples, tokenizer, *lengths, is_training, features.append)
    return features


def windows_of(examples, tokenizer, *lengths, is_training=False, num_workers=1, **options):
    config = squad.SquadConfig(*lengths, **options)
    return squad.featurize(examples, tokenizer, config, is_training, num_workers)


@pytest.mark.parametrize("stride", [0, -3])
def test_windows_that_never_advance_are_refused(letters, stride):
    examples = [squad.make_example("q7", "a?", "b c")]
    for make in (features_of, windows_of):
        assert_refused(f"--doc_stride is {stride}", make, examples, letters, 12, stride, 4, is_training=False)


def test_questions_that_leave_no_room_are_refused(letters):
    examples = [squad.make_example("q7", "abcdefgh", "b c")]
    for make in (features_of, windows_of):
        with pytest.raises(InputError, match=r"question 'q7' leaves no room.*--max_seq_length=11"):
            make(examples, letters, 11, 4, 64, is_training=False)
    assert_refused("--max_query_length=64: ", squad.SquadConfig(max_seq_length=67, max_query_length=64).check_lengths)
    squad.SquadConfig(max_seq_length=68, max_query_length=64).check_lengths()
    assert_refused("--max_query_length is -1", squad.SquadConfig, max_seq_length=68, max_query_length=-1)


def test_texts_and_answers_without_tokens_have_no_windows(letters):
    examples = [
        squad.make_example("no text", "a?", "\u200b \u200b"),
        training_example("a \u200b b", "\u200b", qas_id="no answer"),
        training_example("a b", "b", qas_id="fine"),
    ]
    assert len(features_of(examples[:1], letters, 12, 4, 4)) == 0
    for example in examples:
        example.orig_answer_text, example.answer_offset = example.orig_answer_text or "x", example.answer_offset or 0
    windows = windows_of(examples, letters, 12, 4, 4, is_training=True, answer_text="offsets")
    assert windows.examples_without_windows() == [0, 1]
    assert windows.report(examples)[0].startswith("2 of 3 questions have no window")
    assert windows.report(examples)[0].endswith("no text, no answer")
    assert windows_of(examples[2:], letters, 12, 4, 4, is_training=False).report(examples[2:]) == []
    assert windows.example_index.tolist() == [2]


def test_questions_about_a_context_share_its_tokens(letters):
    context = squad.make_example("", "", "abc def")
    examples = [squad.SquadExample(str(i), "a?", context.doc_tokens, context=context.context) for i in range(5)]
    windows = windows_of(examples, letters, 12, 4, 4, is_training=False)
    assert (len(windows), len(windows.documents)) == (5, 1)


def assert_same_windows(some, others):
    assert (some.documents, some.per_example.keys()) == (others.documents, others.per_example.keys())
    arrays = {**vars(some), **some.per_example}, {**vars(others), **others.per_example}
    for name, values in arrays[0].items():
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(values, arrays[1][name], name, strict=True)


def test_chunks_and_processes_change_nothing(monkeypatch):
    path = str(golden_path("squad/inputs/v1.1_train.json"))
    examples = original_api.read_squad_examples(path, is_training=True)
    tokenizer = real_tokenizer()
    whole = windows_of(examples, tokenizer, 64, 16, 12, is_training=True)
    monkeypatch.setattr(windows, "_CHUNK_PARAGRAPHS", 3)
    parts = windows_of(examples, tokenizer, 64, 16, 12, is_training=True, num_workers=3)
    assert_same_windows(whole, parts)


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("It (1895-1943) was.", "1895"),
        ("people\xa0lived  here", "people\xa0lived"),
        ("people\xa0lived  here", "lived  here"),
        ("der cafe\u0301 war", "cafe\u0301"),
        ("wor\u200bds here", "wor\u200bds"),
        ("中文維基", "文維"),
        ("İstanbul is", "İstanbul"),
    ],
)
def test_answers_by_offsets_are_exact(context, answer):
    tokenizer = real_tokenizer()
    example = training_example(context, answer)
    windows = windows_of([example], tokenizer, 40, 16, 8, is_training=True, answer_text="offsets")
    first, last = (int(windows.per_example[f"{end}_positions"][0]) for end in ("start", "end"))
    spans = windows.documents[0].spans
    begin = int(windows.first_lengths[0])
    assert context[spans[first - begin][0] : spans[last - begin][1]] == answer


def test_an_answer_inside_a_piece_takes_the_whole_piece():
    example = training_example("the Japanese electronics", "Japan")
    windows = windows_of([example], real_tokenizer(), 40, 16, 8, is_training=True, answer_text="offsets")
    ids = windows.input_ids[windows.per_example["start_positions"][0] : windows.per_example["end_positions"][0] + 1]
    assert real_tokenizer().convert_ids_to_tokens(ids.tolist()) == ["japanese"]


def test_answers_that_no_window_holds_point_at_cls(letters):
    example = training_example("bcdefghijk", "cdefghij")
    example.start_position = example.end_position = 0
    windows = windows_of([example], letters, 11, 2, 4, is_training=True, answer_text="offsets")
    assert len(windows) > 1
    assert not windows.per_example["start_positions"].any()
    (impossible,) = [squad.make_example("q", "a?", "b c")]
    impossible.is_impossible = True
    windows = windows_of([impossible], letters, 11, 2, 4, is_training=True)
    assert windows.per_example["end_positions"].tolist() == [0]
