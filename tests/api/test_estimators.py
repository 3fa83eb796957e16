"""Tests directories, settings and errors of estimators."""

import concurrent.futures
import copy
import pathlib
import pickle
import random
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import saver
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.runtime.files import InputError
from bert_tf.training.step.trainer import Trainer
from tests import finished_runs, programs
from tests.api.tiny import BAD, FIT, GOOD, LABELS, TEXTS
from tests.conftest import assert_close, assert_refused, tensors_of

pytestmark = [pytest.mark.eager, pytest.mark.plain]
QUESTIONS, ANSWERS = [("fine words", text) for text in TEXTS], [text.split()[0] for text in TEXTS]


def test_runs_of_glue_are_loaded_as_what_they_are(tmp_path):
    pairs = [(first, second) for first in GOOD for second in BAD]
    names = ["entailment", "not_entailment"]
    finished_runs.write_run(tmp_path / "rte-run", ClassifierModel(finished_runs.config(), 2), task="rte", labels=names)
    regressor = ClassifierModel(finished_runs.config(), 1, "regression")
    finished_runs.write_run(tmp_path / "sts-b-run", regressor, task="sts-b")
    classifier = bert_tf.Classifier.load(tmp_path / "rte-run")
    assert classifier.labels == names
    assert set(classifier.predict(pairs)) <= set(classifier.labels)
    assert_refused(r"x: .* pairs of texts", classifier.predict, GOOD)
    assert bert_tf.Regressor.load(tmp_path / "sts-b-run").predict(pairs).shape == (4,)
    for kind, task, right in (
        (bert_tf.Regressor, "rte", "Classifier"),
        (bert_tf.Classifier, "sts-b", "Regressor"),
        (bert_tf.TokenClassifier, "rte", "Classifier"),
    ):
        assert_refused(f"has a run of '{task}'. Use {right}.load", kind.load, tmp_path / f"{task}-run")


def test_other_data_in_the_same_directory_are_refused_and_the_same_go_on(pretrained, tmp_path):
    def fit(texts):
        estimator = bert_tf.Regressor.from_pretrained(pretrained, max_seq_length=16, output_dir=str(tmp_path))
        estimator.fit(texts, np.linspace(0, 1, len(texts)), **FIT)
        return estimator

    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    trained = fit(TEXTS)
    first = trained.predict(GOOD)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert_close(fit(TEXTS).predict(GOOD), first, 0)
    for texts in ([*TEXTS[1:], TEXTS[0]], [(text, text) for text in TEXTS]):
        assert_refused("training_rows_sha256", fit, texts)
    assert_close(trained.predict(GOOD), first, 0)  # the estimator still reads single texts


def test_a_trained_directory_is_used_as_it_was_trained(pretrained, tmp_path, capsys):
    directory = str(tmp_path / "run")
    with concurrent.futures.ThreadPoolExecutor() as pool:  # in Python, only the main thread gets signals
        classifier = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16, output_dir=directory)
        pool.submit(classifier.fit, TEXTS, LABELS, **FIT).result()
    cased = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16, output_dir=directory, do_lower_case=False)
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    for use, message in (
        (lambda: cased.predict(TEXTS), "do_lower_case was True, and is False now"),
        (lambda: cased.evaluate(TEXTS, LABELS), "do_lower_case was True, and is False now"),
        (lambda: classifier.evaluate(TEXTS[:2], ["pos", "other"]), r"^example 1: the label 'other'"),
    ):
        assert_refused(message, use)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == files
    shorter = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=8, output_dir=directory)
    assert_close(shorter.predict_proba(TEXTS), classifier.predict_proba(TEXTS), 1e-6)  # the texts have 5 tokens
    assert "have changed: max_seq_length was 16, and is 8 now." in capsys.readouterr().err
    for copy_of in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"save\(\) and load\(\)"):
            copy_of(classifier)


@pytest.mark.parametrize(
    ("settings", "fit", "message"),
    [
        ({"max_seq_length": 0}, {}, "^max_seq_length is 0"),
        ({"max_seq_length": "16"}, {}, "max_seq_length is '16'"),
        ({"class_weights": 5}, {}, "^class_weights is 5. Expected"),
        ({"labels": "good"}, {}, "labels is 'good'"),
        ({"labels": 2}, {}, "labels is 2"),
        (
            {"doc_stride": 128},
            {},
            "^doc_stride is used only with long_documents=windows. Omit it with long_doc.*=truncate",
        ),
        ({"bilstm_units": 8}, {}, "^bilstm_units is used only with bilstm_layers. Pass bilstm_layers too"),
        ({"evaluate_every": "end"}, {"early_stopping_patience": 0}, "is not used with evaluate_every=end"),
        ({"multilabel": True}, {}, "no argument 'multilabel'.* max_seq_length"),
        ({}, {"batch_size": 8.5}, "^batch_size is 8.5"),
        ({}, {"learning_rate": keras.optimizers.schedules.CosineDecay(1e-3, 10)}, "^learning_rate is .*CosineDecay"),
        ({}, {"validation_split": 1.5}, "validation_split is 1.5"),
        ({}, {"validation_split": "0.1"}, "validation_split is '0.1'"),
        ({}, {"validation_split": 0.01}, "validation_split=0.01 of 24 examples is less than one"),
        ({}, {"validation_data": TEXTS}, r"validation_data: labels are needed.* \(examples, labels\)"),
        ({}, {"use_best_checkpoint": True}, "need validation data"),
        ({}, {"shuffle": True}, "no argument 'shuffle'.* save_checkpoints_steps"),
        ({}, {"sample_weight": [1.0] * 23}, "24 examples, but 23 weights"),
        ({}, {"sample_weight": [1.0] * 23 + [-1]}, r"the weight of example 23 is '-1' \(int\)"),
        ({}, {"sample_weight": [1.0] * 23 + [float("nan")]}, "the weight of example 23 is 'nan'"),
        ({}, {"sample_weight": [0.0] * 24}, "every row has weight 0"),
        ({}, {"epochs": 1, "batch_size": 32}, r"^epochs=1.* of 24 examples with batch_size=32 is less than one step"),
        ({}, {"epochs": 0}, "^epochs is 0"),
        ({}, {"epochs": 1, "num_train_epochs": 2}, "epochs and num_train_epochs are two names"),
        ({}, {"seed": 1, "random_seed": 2}, "seed and random_seed are two names"),
        ({}, {"gradient_accumulation_steps": 3}, "^batch_size=8: .* gradient_accumulation_steps=3"),
        ({}, {"validation_split": 0.5, "selection_metric": "f1"}, r"^selection_metric: text has no f1\. Use accuracy"),
        ({}, {"selection_metric": "bleu"}, "^selection_metric is 'bleu'. Expected one of accuracy, f1, "),
        ({"freeze_layers": 9}, {}, "^freeze_layers=9: the model has only 1 layers"),
        ({"max_seq_length": 5000}, {}, "^max_seq_length is 5000, but"),
        ({"tpu_name": "local"}, {}, '^tpu_name is used only with distribution_strategy="tpu"'),
        ({"distribution_strategy": "tpu"}, {}, "^tpu_name: missing. Pass local on a TPU VM"),
        ({"output_dir": "/proc/x"}, {}, "^output_dir: /proc: no files can be created"),
        ({"output_dir": __file__}, {}, "^output_dir: .*py is not a directory"),
    ],
)
def test_bad_settings_are_named(pretrained, settings, fit, message):
    with pytest.raises((InputError, TypeError), match=message) as raised:
        classifier = bert_tf.Classifier.from_pretrained(pretrained, **{"max_seq_length": 16} | settings)
        classifier.fit(TEXTS, LABELS, **FIT | fit)
    assert "--" not in str(raised.value)  # the message names arguments


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda at: bert_tf.Classifier.load(at), r"load\(\): .*Classifier\.from_pretrained\(\)"),
        (lambda at: bert_tf.Classifier.load(None), r"load\(\): None is not a path"),
        (lambda at: bert_tf.Classifier.load(f"{at}/nope"), r"^load\(\): there is no directory '.*nope'. Check"),
        (lambda at: bert_tf.load_model(None), r"load_model\(\): None is not a path"),
        (lambda at: bert_tf.load_model("nope"), r"^load_model\(\): there is no checkpoint 'nope'"),
        (lambda at: bert_tf.FillMask("nope"), r"^FillMask\(\): there is no checkpoint 'nope'"),
        (lambda at: bert_tf.Classifier.from_pretrained(at, num_labels=2), "omit num_labels"),
        (lambda at: bert_tf.SentenceEncoder.from_pretrained(at, max_seq_length=5000), "^max_seq_length is 5000"),
        (lambda at: bert_tf.Classifier.from_pretrained(None), r"Classifier.from_pretrained\(\): None is not a path"),
        (lambda at: bert_tf.Regressor.from_pretrained(at, labels=["a"]), "labels: a Regressor has no classes"),
        (lambda at: bert_tf.MultipleChoice.from_pretrained(at, labels=["a"]), "MultipleChoice has no classes"),
        (lambda at: bert_tf.QuestionAnswerer.from_pretrained(at, labels=["a"]), "QuestionAnswerer has no classes"),
        (lambda at: bert_tf.SentenceEncoder.from_pretrained(at).encode(["a"], pooling="sum"), "pooling is 'sum'"),
        (lambda at: bert_tf.SentenceEncoder.from_pretrained(at).encode(["a"], batch_size=-1), "batch_size is -1"),
        (lambda at: bert_tf.SentenceEncoder.from_pretrained(at, max_seq_length=2), "max_seq_length is 2"),
        (lambda at: bert_tf.Pretrainer("huge", f"{at}/vocab.txt"), "'huge'"),
        (lambda at: bert_tf.Klassifier, "no attribute 'Klassifier'"),
    ],
)
def test_bad_uses_are_named(pretrained, use, message):
    with pytest.raises((InputError, AttributeError, TypeError), match=message):
        use(pretrained)


def test_the_name_of_a_tpu_is_an_argument(monkeypatch, pretrained, tmp_path):
    def connect(tpu, **_):
        raise tf.errors.NotFoundError(None, None, f"{tpu} is unknown")

    monkeypatch.setattr(tf.distribute.cluster_resolver.TPUClusterResolver, "connect", connect)
    data, lengths = programs.write_pretraining_data(tmp_path / "data"), {"max_seq_length": 12}
    tpu = {"distribution_strategy": "tpu", "tpu_name": "our-tpu"}
    with pytest.raises(InputError, match=r"tpu_name: no TPU 'our-tpu' .*On a TPU VM, pass tpu_name=local"):
        bert_tf.Classifier.from_pretrained(pretrained, **tpu, **lengths).fit(TEXTS, LABELS, **FIT)
    with pytest.raises(InputError, match=r"tpu_name: no TPU 'our-tpu'"):
        bert_tf.Pretrainer("tiny", f"{pretrained}/vocab.txt", **tpu).fit(data, num_train_steps=1, **lengths)


def test_paths_may_be_objects(pretrained, tmp_path):
    path = pathlib.Path(pretrained)
    estimator = bert_tf.Classifier.from_pretrained(path, output_dir=tmp_path)
    assert (estimator.output_dir, estimator._start) == (str(tmp_path), pretrained)
    assert bert_tf.load_tokenizer(path).vocab == bert_tf.load_model(path).tokenizer.vocab
    pretrainer = bert_tf.Pretrainer("tiny", path / "vocab.txt", init_checkpoint=path)
    assert (pretrainer.vocab_file, pretrainer._start) == (f"{pretrained}/vocab.txt", pretrained)
    assert BertConfig.from_json_file(path / "bert_config.json") == estimator.config


def test_a_run_that_is_stopped_by_ctrl_c_goes_on_with_the_next_fit(pretrained, tmp_path, monkeypatch):
    def make(name):
        return bert_tf.Regressor.from_pretrained(pretrained, max_seq_length=16, output_dir=tmp_path / name)

    def fit(estimator, **changes):
        return estimator.fit(TEXTS, np.linspace(0, 1, len(TEXTS)), **FIT | {"num_train_steps": 3} | changes)

    stopped, whole = make("stopped"), make("whole")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "should_stop", lambda trainer, is_stopped: signal.raise_signal(signal.SIGINT) or True)
        with pytest.raises(KeyboardInterrupt, match=r"stopped after step 1, which is saved\. Call fit\(\) again"):
            fit(stopped)
    message = (
        r"(?s)^output_dir: .*\n  batch_size was 8, and is 4 now\n.* pass allow_changed_settings to use the new ones"
    )
    with pytest.raises(InputError, match=message) as raised:
        fit(stopped, batch_size=4)
    assert "--" not in str(raised.value)
    fit(stopped)
    fit(whole)
    np.testing.assert_equal(tensors_of(tmp_path / "stopped"), tensors_of(tmp_path / "whole"))
    assert fit(make("stopped"), num_train_steps=4, allow_changed_settings=True) == {}
    assert saver.latest_checkpoint(str(tmp_path / "stopped")).endswith("-4")


@pytest.mark.parametrize("kind", ["Regressor", "QuestionAnswerer", "Pretrainer"])
def test_a_second_fit_trains_on_and_the_same_calls_resume_in_another_process(pretrained, tmp_path, kind):
    records = programs.write_pretraining_data(tmp_path / "data")

    lengths = {"max_seq_length": programs.LENGTH, "max_predictions_per_seq": programs.PREDICTIONS}
    # Class -> arguments of `from_pretrained`, the data, and arguments of `fit`.
    options, data, settings = {
        "Regressor": ({}, (TEXTS, np.linspace(0, 1, 24)), {}),
        "QuestionAnswerer": ({"doc_stride": 4, "max_query_length": 4}, (QUESTIONS, ANSWERS), {}),
        "Pretrainer": ({}, (records,), lengths),
    }[kind]

    def make(directory):
        if kind == "Pretrainer":
            config, vocab = programs.write_model_files(tmp_path)
            return bert_tf.Pretrainer(BertConfig.from_json_file(config), vocab, output_dir=directory)
        return getattr(bert_tf, kind).from_pretrained(pretrained, max_seq_length=16, output_dir=directory, **options)

    def fit(trained, steps):
        trained.fit(*data, num_train_steps=steps, batch_size=8, learning_rate=1e-3, **settings)
        return tensors_of(trained._check_trained())

    def equal(some, others):
        return all(np.array_equal(value, others[name]) for name, value in some.items())

    first = make(tmp_path / "run")
    weights = [fit(first, 2), fit(first, 3)]
    assert not equal(*weights)
    other = bert_tf.load_model(tmp_path / "run").encoder  # programs use the newest run
    assert equal({variable.path: variable.numpy() for variable in other.weights}, weights[1])
    second = make(tmp_path / "run")
    for expected, steps in zip(weights, (2, 3), strict=True):
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("model.ckpt*")}
        assert equal(fit(second, steps), expected)
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("model.ckpt*")} == before
    assert_refused("num_train_steps was 2, and is 3 now", fit, make(tmp_path / "run"), 3)
    if kind != "Pretrainer":  # a loaded estimator continues in another directory
        before = tensors_of(tmp_path / "run")
        loaded = getattr(bert_tf, kind).load(tmp_path / "run")
        assert not equal(fit(loaded, 2), before)
        assert equal(tensors_of(tmp_path / "run"), before)


def test_estimators_show_what_they_are_and_warn(pretrained, capsys):
    bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=8, learning_rate=3.5)
    assert "Warning: learning_rate=3.5: " in capsys.readouterr().err
    classifier = bert_tf.Classifier.from_pretrained(pretrained, labels=["a", "b"], max_seq_length=16)
    assert repr(classifier) == f"Classifier({pretrained!r}, labels=['a', 'b'], max_seq_length=16)"
    assert repr(bert_tf.Regressor.from_pretrained(pretrained)) == f"Regressor({pretrained!r}, max_seq_length=128)"
    encoder = bert_tf.SentenceEncoder.from_pretrained(pretrained, max_seq_length=16)
    assert repr(encoder) == f"SentenceEncoder('{pretrained}/bert_model.ckpt', max_seq_length=16)"
    vocab = f"{pretrained}/vocab.txt"
    assert repr(bert_tf.Pretrainer("tiny", vocab)) == f"Pretrainer(hidden_size=128, vocab_file={vocab!r})"
    size = BertConfig.named("tiny", vocab_size=11)
    assert bert_tf.Pretrainer("tiny", vocab).config == size
