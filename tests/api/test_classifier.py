"""Tests classifiers and regressors: training and class names."""

import collections
import json
import types

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import export
from bert_tf.checkpoints import run_record
from bert_tf.checkpoints.class_names import HEAD_VARIABLES
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.runtime.files import InputError
from bert_tf.serving.export_config import ExportConfig
from tests.api.tiny import BAD, FIT, GOOD, LABELS, LEARN, TEXTS
from tests.conftest import assert_close, assert_refused, tensors_of

pytestmark = pytest.mark.plain


def test_a_model_that_was_fine_tuned_before_predicts_by_the_names_of_its_classes(fine_tuned):
    def classifier(labels, **options):
        return bert_tf.Classifier.from_pretrained(directory, labels, max_seq_length=16, **options)

    directory, probabilities = fine_tuned(ClassifierModel, ["pos", "neg"]), {}
    for labels in (None, ("NEG", "pos")):
        read = classifier(labels)
        assert tuple(read.labels) == (labels or ("pos", "neg"))
        probabilities[labels] = read.predict_proba(TEXTS[:4])
    assert_close(probabilities[None][:, ::-1], probabilities["NEG", "pos"], 1e-6)
    assert read.evaluate(TEXTS[:4], read.predict(TEXTS[:4]))["accuracy"] == 1.0
    assert_refused("pos, neg.*good, bad", classifier(["good", "bad"]).predict, TEXTS)
    fresh = classifier(["good", "bad"], reset_head=True)
    for use in (lambda: fresh.predict(TEXTS), lambda: fresh.labels):
        assert_refused("no trained model yet", use)
    assert fresh._run(types.SimpleNamespace(documents=None)).new_variables == HEAD_VARIABLES


@pytest.mark.eager
def test_weights_of_examples(pretrained, tmp_path):
    weights = np.array([1.0, 2.0, 0.0, 1.0] * 6, np.float32)
    # The labels of examples with weight 0 have no effect on training.
    other = [label if weight else "pos" for label, weight in zip(LABELS, weights, strict=True)]
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, np.array(other), weights)).batch(5)
    # Settings may be NumPy numbers.
    for name, number, given in (("list", int, (TEXTS, LABELS, weights)), ("dataset", np.int64, (dataset,))):
        estimator = bert_tf.Classifier.from_pretrained(pretrained, output_dir=str(tmp_path / name), max_seq_length=16)
        settings = {"num_train_steps": 1, "batch_size": 8, "seed": 7, "epochs": 3}
        data = dict(zip(("x", "y", "sample_weight"), given, strict=False))
        estimator.fit(**data, **{name: number(value) for name, value in settings.items()})
    np.testing.assert_equal(tensors_of(tmp_path / "list"), tensors_of(tmp_path / "dataset"))
    loaded = bert_tf.Classifier.load(str(tmp_path / "list"))  # reads examples without weights
    assert 0 <= loaded.score(TEXTS, LABELS) <= 1
    choice = bert_tf.MultipleChoice.from_pretrained(pretrained, max_seq_length=16)
    message = "sample_weight: MultipleChoice does not support weights"
    assert_refused(message, choice.fit, [("a", ["fine", "poor"])], [0], sample_weight=[1.0])


def test_several_labels_of_pairs(pretrained, tmp_path):
    estimator = bert_tf.Classifier.from_pretrained(
        pretrained, labels=["fine", "poor"], multi_label=True, label_threshold="tune", max_seq_length=16
    )
    pairs = [(text, "words") for text in TEXTS]
    labels = [[label for label in ("fine", "poor") if label in text] for text in TEXTS]
    flags = np.array([[label in text for label in ("fine", "poor")] for text in TEXTS], np.int64)
    assert estimator._examples(pairs, flags.tolist()) == estimator._examples(pairs, labels)
    with pytest.raises(InputError, match=r"label_threshold=tune and calibrate need a dev set. Pass validation_data"):
        estimator.fit(pairs, labels, **LEARN)
    estimator.fit(pairs, labels, validation_data=(pairs[:8], labels[:8]), **LEARN)
    assert estimator.predict(pairs[:4]) == labels[:4]
    threshold = run_record.label_threshold(estimator.output_dir)
    assert 0 < threshold < 1
    assert threshold != 0.5
    assert_refused("x: the model was trained on pairs of texts", estimator.predict, TEXTS)
    for other in (bert_tf.Classifier, bert_tf.Regressor, bert_tf.TokenClassifier, bert_tf.MultipleChoice):
        with pytest.raises(InputError, match=r"was trained for .*reset_head=True"):
            other.from_pretrained(estimator.output_dir, max_seq_length=16)._check_usable()
    # A model that was fine-tuned elsewhere also gets both texts.
    copied = bert_tf.Classifier.from_pretrained(estimator.output_dir, multi_label=True, max_seq_length=16)
    for given, second in ((pairs, "words"), (TEXTS, None)):
        task, examples, *_ = copied._predicted(given, 8)
        assert {example.text_b for example in examples} == {second}
        assert task.label_threshold == threshold
    estimator.save(str(tmp_path / "saved"))
    loaded = bert_tf.Classifier.load(str(tmp_path / "saved"))
    assert loaded._predicted(pairs, 8)[0].label_threshold == threshold
    exported = export.build(estimator.output_dir, ExportConfig())
    assert exported.settings["threshold"] == exported.served._threshold == threshold
    assert exported.settings["inputs"] == list(exported.served._inputs) == ["text", "text_b"]


def test_columns_of_flags_need_the_names_of_their_classes(pretrained):
    estimator = bert_tf.Classifier.from_pretrained(pretrained, multi_label=True, max_seq_length=16)
    with pytest.raises(InputError, match=r"example 0 has a label twice: 1, 0, 1\..*labels="):
        estimator._examples(TEXTS[:2], [[1, 0, 1], ["a"]])
    for flags in ([[1, 0], [0, 1]], [[1.0, 0.0]] * 2, [[True, False]] * 2, [[1, 0, 1], [0, 0, 0]]):
        assert_refused(r"the labels of every example are 0 and 1.*labels=", estimator._examples, TEXTS[:2], flags)
    for labels in ([[1, 0], [0]], [["1", "0"]] * 2, [[1, 2], [2, 0]], [[], []]):
        expected = [tuple(map(str, row)) for row in labels]
        assert [example.label for example in estimator._examples(TEXTS[:2], labels)] == expected


@pytest.mark.eager
@pytest.mark.parametrize(
    ("given", "to_labels"),
    [
        (np.array([1, 0]), [0, 1]),
        ([True, False], [False, True]),
        (["9", "10"], ["10", "9"]),
        (["1.0", "0.0"], ["0.0", "1.0"]),
        (["b ", "a"], ["a", "b "]),
        ([10.0, 9.0], [9.0, 10.0]),
        pytest.param([1, 0], ["neg", "pos"], id="numbers of the labels"),
    ],
)
def test_classes_come_back_as_they_were_given(pretrained, tmp_path, given, to_labels):
    named = {"labels": to_labels} if "pos" in to_labels else {}
    classifier = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16, **named)
    classifier.fit(TEXTS, [given[int(label == "neg")] for label in LABELS], **FIT, num_train_steps=1)
    saved = tmp_path / "saved"
    classifier.save(saved)
    read = bert_tf.Classifier.from_pretrained(saved, max_seq_length=16, **named)
    number = classifier.predict_proba(TEXTS[:1]).argmax()
    for model in (classifier, bert_tf.Classifier.load(saved), read):
        predicted = model.predict(TEXTS[:1])
        assert [model.labels, predicted] == [to_labels, [to_labels[number]]]
        assert list(map(type, predicted)) == [type(to_labels[0])]
        assert model.score(TEXTS[:1] * 3, [given[0], *given]) == pytest.approx((1 + number) / 3)


@pytest.mark.eager
def test_the_classes_of_a_run_keep_their_order(pretrained, tmp_path):
    def fitted(labels=None):
        model = bert_tf.Classifier.from_pretrained(pretrained, labels, output_dir=tmp_path / "run", max_seq_length=16)
        model.fit(TEXTS, [{"pos": "10", "neg": "2"}[label] for label in LABELS], num_train_steps=1)
        return model

    fitted(["2", "10"])
    resumed = fitted()  # numpy.unique would give another order, and the run would be refused
    resumed.fit(TEXTS[1:], [{"pos": "10", "neg": "2"}[label] for label in LABELS[1:]], num_train_steps=1)
    assert resumed.labels == ["2", "10"]
    assert bert_tf.Classifier.load(tmp_path / "run").labels == ["2", "10"]
    record = tmp_path / "run" / "fit_2" / "run.json"
    run = json.loads(record.read_text())
    assert run["flags"].pop("given_labels") == {"10": "10", "2": "2"}
    record.write_text(json.dumps(run | {"flags": run["flags"] | {"label_type": "int"}}))  # as in earlier versions
    assert bert_tf.Classifier.load(tmp_path / "run").labels == [2, 10]


def test_held_out_examples_are_of_all_classes_that_have_two(pretrained, tasks):
    classifier = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16)
    assert_refused("the labels have the types int and str", classifier.fit, TEXTS[:2], [1, "1"])
    assert_refused("the labels 'a' and 'a ' are the same class", classifier.fit, TEXTS[:2], ["a", "a "])
    classifier.set_params(class_weights=np.array([1.0, 2.0]))
    assert_refused("class_weights: there are 2 weights, but 3 classes", classifier.fit, TEXTS[:3], ["a", "b", "c"])
    classifier.set_params(class_weights="")
    for seed in (1, 2):
        classifier.fit([*TEXTS, "a day"], [*LABELS, "rare"], validation_split=0.25, seed=seed)
    splits = [[[row.label for row in task.split(split)] for split in ("train", "dev")] for task in tasks]
    assert splits[0] == splits[1]
    assert [collections.Counter(labels) for labels in splits[0]] == [
        {"pos": 9, "neg": 9, "rare": 1},
        {"pos": 3, "neg": 3},
    ]
    regressor = bert_tf.Regressor.from_pretrained(pretrained, max_seq_length=16)
    numbers = np.arange(4.0)
    assert regressor._examples(TEXTS[:4], numbers[:, np.newaxis].tolist()) == regressor._examples(
        TEXTS[:4], numbers.tolist()
    )
    regressor.fit(TEXTS, np.arange(24.0), validation_split=0.25)
    assert [len(tasks[-1].split(split)) for split in ("train", "dev")] == [18, 6]


def test_classes_may_have_commas_in_their_names(read):
    names = ["good, very", "bad"]
    weights = {"good, very": 2.0, "bad": 0.5}
    assert read(bert_tf.Classifier, TEXTS[:2], names, labels=names, class_weights=weights).weights() == [2.0, 0.5]
    several = read(bert_tf.Classifier, TEXTS, [[names[label == "neg"]] for label in LABELS], multi_label=True)
    several.check_training_set(several.split("train"))
    assert several.labels == ("bad", "good, very")


@pytest.mark.eager
def test_texts_are_ranked_for_a_query(pretrained):
    texts, two = [*GOOD, *BAD], ["no", "yes"] * 2
    pairs = [("a day", text) for text in texts]

    def model_of(kind, examples, labels, **options):
        model = kind.from_pretrained(pretrained, max_seq_length=16, **options)
        model.fit(examples, labels, num_train_steps=1, batch_size=4, learning_rate=1e-2)
        return model

    regressor, classifier = model_of(bert_tf.Regressor, pairs, [1, 2, 3, 5]), model_of(bert_tf.Classifier, pairs, two)
    numbered = model_of(bert_tf.Classifier, pairs, [0, 1] * 2)
    for model, label in ((regressor, None), (classifier, "yes"), (numbered, None)):
        scores = model.predict(pairs) if model is regressor else model.predict_proba(pairs)[:, 1]
        order = np.argsort(-scores).tolist()
        expected = [{"corpus_id": number, "score": float(scores[number]), "text": texts[number]} for number in order]
        assert model.rank("a day", texts, label=label, return_documents=True) == expected
        best = [{"corpus_id": order[0], "score": expected[0]["score"]}]
        assert model.rank("a day", np.array(texts), label=label, top_k=1) == best
        assert model.rank("a day", [], label=label) == []
    several = model_of(bert_tf.Classifier, pairs, [["x"], ["y"]] * 2, multi_label=True)
    single = model_of(bert_tf.Classifier, texts, two)
    for model, arguments, options, message in (
        (several, ("a", texts), {}, r"^rank\(\): the model was trained on several labels"),
        (single, ("a", texts), {}, r"^rank\(\): the model was trained on single texts"),
        (bert_tf.Regressor.from_pretrained(pretrained), ("a", texts), {}, "no trained model yet"),
        (regressor, ("a", texts), {"label": "yes"}, "^label is 'yes'. Omit it"),
        (classifier, ("a", texts), {}, "^label is None. Pass the class whose probability is the score: no, yes"),
        (classifier, ("a", texts), {"label": "maybe"}, "^label is 'maybe'. Pass the class"),
        (numbered, (None, texts), {}, "^query is 'None'"),
        (numbered, ("a", "a text"), {}, "^texts is 'a text'"),
        (numbered, ("a", texts), {"top_k": 0}, "^top_k is 0"),
    ):
        assert_refused(message, model.rank, *arguments, **options)
