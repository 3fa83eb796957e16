"""Estimators: their folders, their settings, and what they say of bad ones."""

import concurrent.futures
import copy
import pathlib
import pickle
import random
import signal

import keras
import numpy as np
import pytest

import bert_tf
from bert_tf.checkpoints import saver
from bert_tf.config import BertConfig
from bert_tf.estimators.in_python import named
from bert_tf.runtime.files import InputError
from bert_tf.training import loop
from tests import programs
from tests.conftest import assert_close
from tests.estimators.tiny import BAD, FIT, GOOD, LABELS, LEARN, TEXTS, weights_of

pytestmark = pytest.mark.plain


def test_runs_of_glue_are_loaded_as_what_they_are(pretrained, tmp_path):
    pairs = [(first, second) for first in GOOD for second in BAD]
    columns = {"rte": ("entailment", "not_entailment"), "sts-b": ("0.0", "5.0")}
    for task, (low, high) in columns.items():
        column = "score" if task == "sts-b" else "label"
        (tmp_path / task).mkdir()
        lines = [f"index\tsentence1\tsentence2\t{column}"]
        lines += [f"{i}\t{a}\t{b}\t{high if i % 2 else low}" for i, (a, b) in enumerate(pairs)]
        for split in ("train", "dev"):
            (tmp_path / task / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        programs.run(
            "run_classifier.py",
            *(f"--task_name={task}", f"--data_dir={tmp_path / task}", f"--output_dir={tmp_path / f'{task}-run'}"),
            *(f"--init_checkpoint={pretrained}", "--max_seq_length=16", "--do_train"),
            *("--train_batch_size=4", "--max_steps=1", "--learning_rate=1e-3"),
        )
    classifier = bert_tf.Classifier.load(tmp_path / "rte-run")
    assert classifier.labels == ["entailment", "not_entailment"]
    assert set(classifier.predict(pairs)) <= set(classifier.labels)
    with pytest.raises(InputError, match="x has single texts, but the model was trained on pairs"):
        classifier.predict(GOOD)
    numbers = bert_tf.Regressor.load(tmp_path / "sts-b-run")
    assert numbers.predict(pairs).shape == (4,)
    for kind, folder in (
        (bert_tf.Regressor, "rte-run"),
        (bert_tf.Classifier, "sts-b-run"),
        (bert_tf.Tagger, "rte-run"),
    ):
        with pytest.raises(InputError, match=f"which is no task of {kind.__name__}"):
            kind.load(tmp_path / folder)


@pytest.mark.eager
def test_other_data_in_the_same_folder_are_refused_and_the_same_go_on(pretrained, tmp_path):
    def fit(texts):
        estimator = bert_tf.Regressor.from_pretrained(pretrained, max_seq_length=16, output_dir=str(tmp_path))
        estimator.fit(texts, np.linspace(0, 1, len(texts)), **FIT)
        return estimator

    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    trained = fit(TEXTS)
    first = trained.predict(GOOD)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    written = (tmp_path / "data" / "train.jsonl").stat().st_mtime_ns
    assert first.shape == (2,)
    assert_close(fit(TEXTS).predict(GOOD), first, 0)
    assert (tmp_path / "data" / "train.jsonl").stat().st_mtime_ns == written
    with pytest.raises(InputError, match="was trained on other data"):
        fit([*TEXTS[1:], TEXTS[0]])
    with pytest.raises(InputError, match="was trained on other data"):
        trained.fit([(text, text) for text in TEXTS], np.linspace(0, 1, len(TEXTS)), **FIT)
    assert_close(trained.predict(GOOD), first, 0)  # it still reads single texts


@pytest.mark.parametrize(
    ("settings", "fit", "message"),
    [
        ({"max_seq_length": 0}, {}, "max_seq_length is 0, but a whole number of at least 4"),
        ({"max_seq_length": "16"}, {}, "max_seq_length is '16', but a whole number"),
        ({"reinit_layers": "1"}, {}, "reinit_layers is '1', but a whole number"),
        ({"bilstm_layers": -1}, {}, "bilstm_layers is -1, but a whole number of at least 0"),
        ({"bilstm_layers": 1, "bilstm_units": 0}, {}, "bilstm_units is 0, but a whole number of at least 1"),
        ({"class_weights": [1, 2]}, {}, "class_weights is .1, 2., but 'balanced' or a dictionary"),
        ({}, {"batch_size": 8.0}, "batch_size is 8.0, but a whole number"),
        ({}, {"early_stopping_patience": "1", "validation_split": 0.25}, "early_stopping_patience is '1', but a whole"),
        ({}, {"seed": -1}, "seed is -1, but a whole number of at least 0"),
        ({}, {"epochs": "1"}, "epochs is '1', but a number"),
        ({}, {"warmup_proportion": 2.0}, "warmup_proportion is 2.0, but a number from 0 to 1"),
    ],
)
def test_bad_settings_are_named(pretrained, settings, fit, message):
    with pytest.raises(InputError, match=message):
        bert_tf.Classifier.from_pretrained(pretrained, **{"max_seq_length": 16} | settings).fit(
            TEXTS, LABELS, **FIT | fit
        )


def test_a_trained_folder_is_used_as_it_was_trained(pretrained, tmp_path):
    folder = str(tmp_path / "run")
    with concurrent.futures.ThreadPoolExecutor() as pool:  # Python gives signals to its main thread only
        classifier = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16, output_dir=folder)
        pool.submit(classifier.fit, TEXTS, LABELS, **FIT).result()
    other = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=8, output_dir=folder)
    for use in (other.predict, lambda texts: other.evaluate(texts, LABELS)):
        with pytest.raises(InputError, match="max_seq_length was 16, and is 8 now"):
            use(TEXTS)
    with pytest.raises(InputError, match=r"^example 1: the label 'other' is unknown"):
        classifier.evaluate(TEXTS[:2], ["pos", "other"])
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(InputError, match=r"holds a model whose training is finished.*Classifier\.from_pretrained\('"):
        bert_tf.Classifier.load(folder).fit(TEXTS, LABELS)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == files
    for copy_of in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"Classifier can't be pickled or copied.*save\(\) and load\(\)"):
            copy_of(classifier)


def test_settings_that_fit_nothing_are_refused(pretrained):
    estimator = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16)
    for share in (1.5, "0.1"):
        with pytest.raises(InputError, match=f"validation_split is {share!r}, but a number between 0 and 1"):
            estimator.fit(TEXTS, LABELS, validation_split=share)
    with pytest.raises(InputError, match=r"validation_data: labels are needed.* Give a pair \(examples, labels\)"):
        estimator.fit(TEXTS, LABELS, validation_data=TEXTS)
    with pytest.raises(
        TypeError,
        match=r"no argument 'callbacks'.* it takes save_checkpoints_steps.* Other settings are arguments of from_pre",
    ):
        estimator.fit(TEXTS, LABELS, callbacks=[])
    with pytest.raises(InputError, match=r"^learning_rate is .*CosineDecay"):
        estimator.fit(TEXTS, LABELS, learning_rate=keras.optimizers.schedules.CosineDecay(1e-3, 10))
    tagger = bert_tf.Tagger.from_pretrained(pretrained, max_seq_length=16)
    with pytest.raises(InputError, match=r"Tagger\.fit\(\): sample_weight is given, but only Classifier and Regressor"):
        tagger.fit([["a"]], [["O"]], sample_weight=[1.0])
    with pytest.raises(InputError, match="need validation data"):
        estimator.fit(TEXTS, LABELS, keep_best=True)
    with pytest.raises(TypeError, match=r"no setting 'multilabel'; .* it has multi_label, class_weights"):
        bert_tf.Classifier.from_pretrained(pretrained, multilabel=True)
    with pytest.raises(InputError, match="pooling is 'sum'"):
        bert_tf.Encoder.from_pretrained(pretrained).encode(["a"], pooling="sum")
    with pytest.raises(AttributeError, match="no attribute 'Klassifier'"):
        _ = bert_tf.Klassifier


def test_paths_may_be_objects(pretrained, tmp_path):
    path = pathlib.Path(pretrained)
    estimator = bert_tf.Classifier.from_pretrained(path, output_dir=tmp_path)
    assert (estimator.output_dir, estimator._init_checkpoint) == (str(tmp_path), pretrained)
    assert bert_tf.load_tokenizer(path).vocab == bert_tf.load(path).tokenizer.vocab
    pretrainer = bert_tf.Pretrainer("tiny", path / "vocab.txt", init_checkpoint=path)
    assert (pretrainer.vocab_file, pretrainer._init_checkpoint) == (f"{pretrained}/vocab.txt", pretrained)
    assert BertConfig.from_json_file(path / "bert_config.json") == estimator.config


def test_choices(pretrained, tmp_path):
    examples = [
        ("a day", [good, bad] if i % 2 else [bad, good]) for i in range(24) for good, bad in [(GOOD[0], BAD[0])]
    ]
    right = [0 if i % 2 else 1 for i in range(24)]
    estimator = bert_tf.MultipleChoice.from_pretrained(pretrained, max_seq_length=16)
    estimator.fit(examples, right, **LEARN)
    assert estimator.predict(examples[:4]) == right[:4]
    estimator.save(str(tmp_path / "saved"))
    loaded = bert_tf.MultipleChoice.load(str(tmp_path / "saved"))
    assert loaded.predict(examples[:4]) == right[:4]
    assert loaded.predict_proba([("a day", [BAD[0], BAD[1], GOOD[0]])]).shape == (1, 3)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("--train_batch_size is 0; --dtype=float32, or --seed=3.5.", "batch_size is 0; dtype='float32', or seed=3.5."),
        ("--export_quantize is 'int4'", "quantize is 'int4'"),
        ("pass --allow_changes.", "pass allow_changes=True."),
        ("use --problem=regression, for --problem is x", "use a Regressor, for the problem is x"),
        ("began:\n  train_batch_size was 8, and is 4 now", "began:\n  batch_size was 8, and is 4 now"),
        ("the label '--labels' is unknown", "the label '--labels' is unknown"),
    ],
)
def test_messages_name_arguments(message, expected):
    assert named(message) == expected


@pytest.mark.eager
def test_a_run_that_is_stopped_by_ctrl_c_goes_on_with_the_next_fit(pretrained, tmp_path, monkeypatch):
    def make(name):
        return bert_tf.Regressor.from_pretrained(pretrained, max_seq_length=16, output_dir=tmp_path / name)

    def fit(estimator, **changes):
        return estimator.fit(TEXTS, np.linspace(0, 1, len(TEXTS)), **FIT | {"max_steps": 3} | changes)

    stopped, whole = make("stopped"), make("whole")
    with monkeypatch.context() as patch:
        patch.setattr(
            loop.Trainer, "should_stop", lambda trainer, is_stopped: signal.raise_signal(signal.SIGINT) or True
        )
        with pytest.raises(KeyboardInterrupt, match=r"stopped after step 1, which is saved\. Call fit\(\) again"):
            fit(stopped)
    with pytest.raises(InputError, match=r"^output_dir: .*\n  batch_size was 8, and is 4 now\n.*allow_changes=True"):
        fit(stopped, batch_size=4)
    fit(stopped)
    fit(whole)
    ours, expected = weights_of(tmp_path / "stopped"), weights_of(tmp_path / "whole")
    assert all(np.array_equal(value, ours[name]) for name, value in expected.items())
    assert fit(make("stopped"), max_steps=4, allow_changes=True) == {}
    assert saver.latest_checkpoint(str(tmp_path / "stopped")).endswith("-4")


def test_wrong_folders_are_named(pretrained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"load\(\): .* holds no run.*Classifier\.from_pretrained\(\) takes pre-trained"
    ):
        bert_tf.Classifier.load(pretrained)
    for use in (bert_tf.Classifier.load, bert_tf.load):
        with pytest.raises(InputError, match=r"load\(\): a path is expected, but None is given"):
            use(None)
    with pytest.raises(InputError, match=r"from_pretrained\(\): a path is expected, but None is given"):
        bert_tf.Classifier.from_pretrained(None)
    estimator = bert_tf.Classifier.from_pretrained(pretrained, output_dir=tmp_path / "file")
    with pytest.raises(InputError, match=r"output_dir: .*/file is a file, but a folder is expected"):
        estimator.fit(TEXTS, LABELS)


@pytest.mark.parametrize("kind", [bert_tf.Regressor, bert_tf.MultipleChoice, bert_tf.QuestionAnswerer])
def test_what_has_no_classes_takes_no_labels(pretrained, kind):
    with pytest.raises(InputError, match=f"labels are given, but a {kind.__name__} has no classes"):
        kind.from_pretrained(pretrained, labels=["a", "b"])


def test_estimators_show_what_they_are(pretrained):
    classifier = bert_tf.Classifier.from_pretrained(pretrained, labels=["a", "b"], max_seq_length=16)
    assert repr(classifier) == f"Classifier({pretrained!r}, labels=['a', 'b'], max_seq_length=16)"
    assert repr(bert_tf.Regressor.from_pretrained(pretrained)) == f"Regressor({pretrained!r}, max_seq_length=128)"
    encoder = bert_tf.Encoder.from_pretrained(pretrained, max_seq_length=16)
    assert repr(encoder) == f"Encoder('{pretrained}/bert_model.ckpt', max_seq_length=16)"
    vocab = f"{pretrained}/vocab.txt"
    assert repr(bert_tf.Pretrainer("tiny", vocab)) == f"Pretrainer(hidden_size=128, vocab_file={vocab!r})"
