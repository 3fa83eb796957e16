"""Estimators and programs give bitwise identical weights."""

import itertools
import json

import numpy as np
import pytest

import bert_tf
from bert_tf.api import in_memory
from tests import programs
from tests.api.tiny import BAD, FIT, GOOD, LABELS, TEXTS
from tests.conftest import tensors_of

pytestmark = [pytest.mark.eager, pytest.mark.plain]

SENTENCES = [text.split() for text in TEXTS[:8]]
TAGS = [["B-X" if word in ("fine", "poor") else "O" for word in words] for words in SENTENCES]
CHOICES = [("a day", [GOOD[0], BAD[0]]), ("a day", [BAD[1], GOOD[1]])] * 4
QUESTIONS = [("fine words", text) for text in TEXTS[:8]], [text.split()[0] for text in TEXTS[:8]]
SEVERAL = [*itertools.pairwise(TEXTS[:9])], [["a", "b"], ["a"], [], ["b"]] * 2
PAIRS = {"problem": "multi_label", "text_b_column": "text_b", "label_threshold": "0.1"}
LAYERS = {"reinit_layers": 1, "bilstm_layers": 1, "bilstm_units": 4}
SPANS = {"doc_stride": 4, "max_query_length": 4}
WEIGHTS = {"labels": ["pos", "neg"], "class_weights": {"pos": 2.0}}
WEIGHT_FLAGS = {"labels": "pos,neg", "class_weights": "pos=2.0"}


# Field of an example -> the column that the programs read.
COLUMNS = {"guid": "id", "text_a": "text", "words": "tokens", "qas_id": "id", "question_text": "question"}


def write_data(directory, split, estimator, x, y):
    """Writes the data of an estimator into a file for the corresponding program."""
    directory.mkdir(exist_ok=True)
    examples = estimator._examples(*in_memory.labelled(x, y, "x", estimator._RANK)[:2])
    rows = ({COLUMNS.get(name, name): value for name, value in vars(x).items() if value is not None} for x in examples)
    (directory / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("kind", "data", "settings", "flags"),
    [
        pytest.param(bert_tf.Classifier, (TEXTS, LABELS), LAYERS, {"use_best_checkpoint": True, **LAYERS}, id="best"),
        pytest.param(bert_tf.Classifier, (TEXTS[:8], LABELS[:8]), WEIGHTS, WEIGHT_FLAGS, id="weights"),
        pytest.param(bert_tf.Classifier, SEVERAL, {"multi_label": True}, PAIRS, id="several labels of pairs"),
        pytest.param(bert_tf.Regressor, (TEXTS[:8], np.linspace(0, 1, 8)), {}, {"problem": "regression"}, id="numbers"),
        pytest.param(bert_tf.MultipleChoice, (CHOICES, [0, 1] * 4), {}, {"task_name": "multiple_choice"}, id="choices"),
        pytest.param(bert_tf.TokenClassifier, (SENTENCES, TAGS), {}, {"task_name": "ner"}, id="tags"),
        pytest.param(bert_tf.QuestionAnswerer, QUESTIONS, SPANS, SPANS, id="answers"),
    ],
)
def test_estimators_of_all_kinds_give_the_weights_of_their_programs(pretrained, tmp_path, kind, data, settings, flags):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    keeps_best = "use_best_checkpoint" in flags
    selection = {"validation_data": (TEXTS[:5], LABELS[:5]), "use_best_checkpoint": True} if keeps_best else {}
    estimator = kind.from_pretrained(pretrained, max_seq_length=16, output_dir=ours, **settings)
    write_data(tmp_path / "data", "train", estimator, *data)
    if keeps_best:
        write_data(tmp_path / "data", "dev", estimator, *selection["validation_data"])
    estimator.fit(*data, num_train_steps=2, **FIT, **selection)
    common = {"output_dir": theirs, "init_checkpoint": pretrained, "max_seq_length": 16, "num_train_steps": 2}
    common |= {"train_batch_size": 8, "learning_rate": 1e-3, "num_train_epochs": 2}
    if kind is bert_tf.QuestionAnswerer:
        command = ["run_squad.py", f"--train_file={tmp_path / 'data' / 'train.jsonl'}"]
    else:
        command = ["run_classifier.py", "--task_name=text", f"--data_dir={tmp_path / 'data'}"]
    programs.run(*command, "--do_train", *(f"--{name}={value}" for name, value in (common | flags).items()))
    for part in ("", "best")[: 1 + keeps_best]:
        trained = tensors_of(ours / part)
        np.testing.assert_equal(trained, tensors_of(theirs / part))
    assert any("bilstm" in name for name in trained) == ("bilstm_layers" in settings)
    if flags == PAIRS:  # another run predicts with the classes and the threshold of the given model
        (tmp_path / "data" / "train.jsonl").rename(tmp_path / "data" / "test.jsonl")
        given = common | flags | {"output_dir": tmp_path / "other", "init_checkpoint": theirs, "label_threshold": ""}
        programs.run(*command, "--do_predict", *(f"--{name}={value}" for name, value in given.items()))
        rows = map(json.loads, (tmp_path / "other" / "test_predictions.jsonl").read_text().splitlines())
        assert {tuple(row["label"]) for row in rows} == {("a", "b")}
    assert repr(kind.load(theirs)).startswith(f"{kind.__name__}({str(theirs)!r}")
