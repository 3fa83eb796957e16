"""Estimators give the weights of the programs, bit for bit."""

import itertools

import numpy as np
import pytest

import bert_tf
from tests import programs
from tests.estimators.tiny import BAD, FIT, GOOD, LABELS, TEXTS, weights_of

pytestmark = pytest.mark.plain


def test_weights_are_those_of_the_program(pretrained, tmp_path):
    settings = {"reinit_layers": 1, "bilstm_layers": 1, "bilstm_units": 4}
    estimator = bert_tf.Classifier.from_pretrained(
        pretrained, max_seq_length=16, output_dir=str(tmp_path / "ours"), **settings
    )
    estimator.fit(TEXTS, LABELS, validation_data=(TEXTS[:5], LABELS[:5]), keep_best=True, max_steps=7, **FIT)
    programs.run(
        "run_classifier.py",
        "--task_name=custom",
        f"--data_dir={tmp_path / 'ours' / 'data'}",
        f"--output_dir={tmp_path / 'theirs'}",
        f"--init_checkpoint={pretrained}",
        f"--bert_config_file={pretrained}/bert_config.json",
        f"--vocab_file={pretrained}/vocab.txt",
        *("--max_seq_length=16", "--do_train", "--do_eval", "--keep_best"),
        *("--num_train_epochs=2", "--max_steps=7", "--train_batch_size=8", "--learning_rate=1e-3"),
        *(f"--{name}={value}" for name, value in settings.items()),
    )
    assert estimator.history()[-1]["step"] == 7
    assert any("bilstm" in name for name in weights_of(tmp_path / "ours"))
    for part in ("", "best"):
        ours, theirs = weights_of(tmp_path / "ours" / part), weights_of(tmp_path / "theirs" / part)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert np.array_equal(value, theirs[name]), name
    read = bert_tf.Classifier.load(str(tmp_path / "theirs"))
    assert read.predict(TEXTS[:4]) == estimator.predict(TEXTS[:4])


CHOICES = [("a day", [GOOD[0], BAD[0]]), ("a day", [BAD[1], GOOD[1]])] * 4
SENTENCES = [text.split() for text in TEXTS[:8]]
SPANS = {"doc_stride": 4, "max_query_length": 4}


@pytest.mark.eager
@pytest.mark.parametrize(
    ("kind", "x", "y", "settings", "flags"),
    [
        pytest.param(bert_tf.Regressor, TEXTS[:8], np.linspace(0, 1, 8), {}, ["--problem=regression"], id="numbers"),
        pytest.param(
            bert_tf.Classifier,
            list(itertools.pairwise(TEXTS[:9])),
            [["a", "b"], ["a"], [], ["b"]] * 2,
            {"multi_label": True},
            ["--problem=multi_label", "--text_b_column=text_b"],
            id="several labels of pairs",
        ),
        pytest.param(
            bert_tf.Classifier,
            TEXTS[:8],
            LABELS[:8],
            {"labels": ["pos", "neg"], "class_weights": {"pos": 2.0}},
            ["--labels=pos,neg", "--class_weights=pos=2.0"],
            id="weighted classes",
        ),
        pytest.param(bert_tf.MultipleChoice, CHOICES, [0, 1] * 4, {}, ["--task_name=multiple_choice"], id="choices"),
        pytest.param(
            bert_tf.Tagger,
            SENTENCES,
            [["B-X" if word in ("fine", "poor") else "O" for word in words] for words in SENTENCES],
            {},
            ["--task_name=ner"],
            id="tags",
        ),
        pytest.param(
            bert_tf.QuestionAnswerer,
            [("fine words", text) for text in TEXTS[:8]],
            [text.split()[0] for text in TEXTS[:8]],
            SPANS,
            [f"--{name}={value}" for name, value in SPANS.items()],
            id="answers",
        ),
    ],
)
def test_estimators_of_all_kinds_give_the_weights_of_their_programs(pretrained, tmp_path, kind, x, y, settings, flags):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    kind.from_pretrained(pretrained, max_seq_length=16, output_dir=ours, **settings).fit(x, y, max_steps=2, **FIT)
    common = {"output_dir": theirs, "init_checkpoint": pretrained, "max_seq_length": 16, "max_steps": 2}
    common |= {"train_batch_size": 8, "learning_rate": 1e-3, "num_train_epochs": 2}
    if kind is bert_tf.QuestionAnswerer:
        program = ["run_squad.py", f"--train_file={ours / 'data' / 'train.json'}"]
    else:
        program = ["run_classifier.py", "--task_name=custom", f"--data_dir={ours / 'data'}"]
    programs.run(*program, "--do_train", *(f"--{name}={value}" for name, value in common.items()), *flags)
    trained, expected = weights_of(ours), weights_of(theirs)
    assert trained.keys() == expected.keys()
    assert [name for name, value in expected.items() if not np.array_equal(value, trained[name])] == []
    assert repr(kind.load(theirs)).startswith(f"{kind.__name__}({str(theirs)!r}")
