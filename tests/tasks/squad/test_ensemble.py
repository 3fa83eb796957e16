import numpy as np
import pytest

from bert_tf.tasks import squad
from tests.conftest import assert_refused


def entries(**probabilities):
    """Returns an n-best list; "null" means the empty answer."""
    return [
        {"text": "" if text == "null" else text, "probability": p, "start_logit": 10 * p, "end_logit": 2 * p}
        for text, p in probabilities.items()
    ]


def test_distributions_are_averaged():
    runs = np.random.default_rng(0).normal(0, 3, [3, 5, 7]).astype(np.float32)
    lengths = np.array([7, 7, 4, 7, 5])
    averaged = np.exp(squad.average_distributions(runs, lengths))
    for window, length in enumerate(lengths):
        probabilities = np.exp(runs[:, window, :length].astype(np.float64))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(averaged[window, :length], probabilities.mean(axis=0), rtol=1e-12)
        assert not averaged[window, length:].any()


def test_n_best_lists_are_merged_by_mean_probability():
    merged = squad.merge_n_best([{"q": entries(x=0.6, y=0.4)}, {"q": entries(z=0.5, y=0.5)}], n_best_size=2)
    assert merged.answers == {"q": "y"}
    assert [(entry["text"], entry["probability"]) for entry in merged.n_best["q"]] == [
        ("y", pytest.approx(0.45)),
        ("x", pytest.approx(0.3)),
    ]
    assert merged.n_best["q"][0]["start_logit"] == pytest.approx(4.5)
    assert merged.null_odds == {}


def test_equal_answers_keep_their_order():
    merged = squad.merge_n_best([{"q": entries(x=0.5, y=0.5)}, {"q": entries(y=0.5, x=0.5)}])
    assert [entry["text"] for entry in merged.n_best["q"]] == ["x", "y"]


def test_null_odds_are_averaged():
    runs = [{"q": entries(null=0.7, x=0.3)}, {"q": entries(y=0.9, null=0.1)}]
    odds = [{"q": 1.0}, {"q": -4.0}]
    merged = squad.merge_n_best(runs, null_odds_of_runs=odds)
    assert (merged.answers, merged.best_non_null, merged.null_odds) == ({"q": "y"}, {"q": "y"}, {"q": -1.5})
    assert squad.merge_n_best(runs, null_odds_of_runs=odds, null_score_diff_threshold=-2.0).answers == {"q": ""}
    only_null = squad.merge_n_best([{"q": entries(null=1.0)}], null_odds_of_runs=[{"q": 5.0}])
    assert (only_null.answers, only_null.best_non_null, only_null.without_candidates) == ({"q": ""}, {"q": ""}, ["q"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "n.json: .*`object`"),
        ('{"q": 1}', "n.json, at .*`array`"),
        ('{"q": [{"text": "x"}]}', "n.json, at .*`probability`"),
    ],
)
def test_other_files_are_no_n_best_lists(write, content, message):
    assert_refused(message, squad.read_n_best, write("n.json", content))
