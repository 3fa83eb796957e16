import re

import numpy as np
import pytest

from bert_tf.encoder import BertEncoder
from bert_tf.fill_mask import FillMask, SentenceScore, pseudo_perplexity
from bert_tf.graphs import pretrained
from bert_tf.pretraining.model import PretrainingModel
from tests import programs
from tests.conftest import assert_close, assert_refused, tiny_config
from tests.finished_runs import write_model

pytestmark = [pytest.mark.eager, pytest.mark.plain]
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    config = tiny_config(vocab_size=len(PIECES), max_position_embeddings=8)
    model = PretrainingModel(config)
    bias = next(v for v in model.variables if v.path == "cls/predictions/output_bias")
    bias.assign(np.linspace(0, 70, len(PIECES)))  # makes the order of the guesses predictable
    write_model(directory, model, PIECES)
    return directory


@pytest.fixture(scope="module")
def filler(directory):
    return FillMask(str(directory))


def test_guesses_for_each_mask_are_sorted(filler, directory):
    guesses = filler("a [MASK] B[MASK]", top=3)
    assert [[guess.token for guess in row] for row in guesses] == [["##c", "b", "a"]] * 2
    assert all(row[0].probability > 0.99 > row[1].probability > row[2].probability for row in guesses)
    assert len(filler("[MASK]", top=99)[0]) == len(PIECES)
    assert filler(["a [MASK] B[MASK]", "[MASK]"], top=3) == [guesses, filler("[MASK]", top=3)]
    all_tokens = {guess.token: guess.probability for guess in filler("[MASK]", top=99)[0]}
    chosen = filler("[MASK] B[MASK]", targets=["b", "A"])
    assert [[guess.token for guess in row] for row in chosen] == [["b", "a"]] * 2
    assert filler("[MASK]", targets=["b"])[0][0].probability == pytest.approx(all_tokens["b"])
    assert filler("[MASK]", targets="b") == filler("[MASK]", targets=("b",))
    for target in ("ab", "x", "", 5):
        assert_refused(f"^targets: {target!r} is not a single token", filler, "[MASK]", targets=[target])
    assert_refused("^targets: 'ab' is not a single token", filler, "[MASK]", targets="ab")
    assert repr(filler) == f"FillMask({str(directory / 'bert_model.ckpt')!r})"


def test_fillings_are_printed(directory):
    flags = [f"--model={directory}", "--text=[MASK] b [MASK]", "--top=2", "--targets=a,b"]
    shown = programs.run("-m", "bert_tf.fill_mask", *flags)
    assert re.search(r"^\[MASK\] b \[MASK\]\n(   b [0-9.]+%   a [0-9.]+%\n){2}", shown, re.MULTILINE), shown


def test_an_embedding_without_a_piece_is_guessed_as_unk(directory, tmp_path):
    for name in ("bert_config.json", *(path.name for path in directory.glob("bert_model.ckpt*"))):
        (tmp_path / name).symlink_to(directory / name)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES[:-1]))
    [guesses] = FillMask(str(tmp_path))("a [MASK]", top=2)
    assert [guess.token for guess in guesses] == ["[UNK]", "b"]


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [
        ("a b", 5, r"has no \[MASK\]"),
        ("a " * 6 + "[MASK]", 5, "has 7 tokens, but the model takes 6"),
        (["a [MASK]", 5], 5, r"\(int\) is not a text"),
        ([["a [MASK]"]], 5, r"\(list\) is not a text"),
        ([], 0, "top is 0"),
        ("a [MASK]", 0, "top is 0"),
    ],
)
def test_bad_texts_are_refused(filler, text, top, message):
    assert_refused(message, filler, text, top)


def test_a_line_that_cannot_be_filled_in_does_not_stop_the_others(directory):
    shown = programs.run("-m", "bert_tf.fill_mask", f"--model={directory}", typed="[MASK]\n\na b\nb [MASK]\n", expect=1)
    assert shown.index("[MASK]\n   ##c") < shown.index("'a b' has no [MASK]") < shown.index("b [MASK]\n   ##c")
    assert "error: 1 of the texts could not be filled in" in shown


def test_a_model_without_the_head_is_refused(tmp_path):
    write_model(tmp_path, BertEncoder(tiny_config()), PIECES)
    assert_refused(r"model\.ckpt has no masked-LM head", FillMask, str(tmp_path))


def score_by_a_loop(filler, text):
    """Computes the score by definition: one forward pass for each token, in which only this token is masked."""
    ids, total = [PIECES.index("[CLS]"), *filler.bert.tokenizer.encode(text), PIECES.index("[SEP]")], 0.0
    for position in range(1, len(ids) - 1):
        masked = [*ids[:position], PIECES.index("[MASK]"), *ids[position + 1 :]]
        states = filler.bert.encoder(np.array([masked])).sequence_output
        logits = filler.head(states, np.array([[position]]), filler.bert.encoder.embedding_table).numpy()[0, 0]
        total += logits[ids[position]] - np.log(np.exp(logits.astype(np.float64)).sum())
    return total


def test_scores_equal_a_loop_over_masks(filler, monkeypatch):
    texts = ["a b", "", "[MASK] a", "bcc ca a b", "\0", "a", "b ac"]
    expected = [score_by_a_loop(filler, text) for text in texts]
    for tokens_per_part in (4096, 11, 1):
        monkeypatch.setattr(pretrained, "_TOKENS_PER_PART", tokens_per_part)
        scores = filler.score(texts)
        assert [score.num_tokens for score in scores] == [2, 0, 4, 6, 0, 1, 3]
        assert_close([score.pseudo_log_likelihood for score in scores], expected, 1e-4)
    assert filler.score([""]) == [SentenceScore(0.0, 0)] and filler.score([]) == []
    assert pseudo_perplexity(scores) == pytest.approx(np.exp(-sum(expected) / 16), rel=1e-5)
    assert np.isnan(pseudo_perplexity(filler.score([""])))
    for bad, message in (
        (["a", "a " * 7], "has 7 tokens, but the model takes 6"),
        ([5], "is not a text"),
        ("a", "Pass a list"),
    ):
        assert_refused(message, filler.score, bad)


def test_lines_of_a_file_are_scored(directory, filler, write):
    program = ("-m", "bert_tf.fill_mask", f"--model={directory}")
    lines = ["a b", "", "bc"]
    shown = programs.run(*program, "--score_file=-", typed="\n".join(lines))
    scores = filler.score(lines)
    rows = [line.split("\t") for line in shown.splitlines() if line.count("\t") == 3]
    assert rows[0] == ["line", "pseudo_log_likelihood", "num_tokens", "pseudo_perplexity"]
    expected = [(i, s.pseudo_log_likelihood, s.num_tokens, pseudo_perplexity([s])) for i, s in enumerate(scores, 1)]
    np.testing.assert_allclose([list(map(float, row)) for row in rows[1:]], expected, rtol=1e-4)
    total = re.search(r"Pseudo-perplexity of 3 texts: (\S+)", shown)[1]
    assert float(total) == pytest.approx(pseudo_perplexity(scores), rel=1e-4)
    path = write("texts.txt", "a b\n" + "a " * 7)
    assert "--score_file: 'a a a a a a a ' has 7 tokens" in programs.run(*program, f"--score_file={path}", expect=1)
    shown = programs.run(*program, f"--score_file={path}", "--top=2", expect=1)
    assert "--top is not used with --score_file" in shown
