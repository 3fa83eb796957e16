"""Estimators: the same weights as the programs give, the same folders, and inputs of all kinds."""

import concurrent.futures
import copy
import pathlib
import pickle
import random
import shutil
import types

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import checkpoints, convert_checkpoint
from bert_tf.checkpoints.output_layers import HEAD_VARIABLES
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.estimators import rows
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime.files import InputError
from bert_tf.tasks import tables
from bert_tf.training.settings import TrainingConfig
from tests import programs
from tests.conftest import assert_close, tiny_config, with_large_head

GOOD, BAD = ("a fine day", "fine words here"), ("a poor day", "poor words here")
TEXTS = [*GOOD, *BAD] * 6
LABELS = ["pos", "pos", "neg", "neg"] * 6
FIT = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3}
# Enough for the tiny model to tell the two kinds of texts apart.
LEARN = {"epochs": 20, "batch_size": 8, "learning_rate": 5e-3, "evaluate_every": "end"}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder with a tiny model, of fresh weights, and its vocabulary."""
    folder = tmp_path_factory.mktemp("pretrained")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["a", "fine", "poor", "day", "words", "here"]]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    config = tiny_config(vocab_size=len(pieces))
    (folder / "bert_config.json").write_text(config.to_json_string())
    keras.utils.set_random_seed(1)
    weights = {variable.path: variable.numpy() for variable in BertEncoder(config).weights}
    checkpoints.write_checkpoint(str(folder / "bert_model.ckpt"), weights)
    return str(folder)


def weights_of(folder):
    source = checkpoints.open_checkpoint(str(folder))
    return {name: source.read(name) for name in source.shapes}


def test_a_classifier_learns_and_is_saved_loaded_and_exported(pretrained, tmp_path, caplog):
    classifier = bert_tf.Classifier.from_pretrained(pretrained, labels=["pos", "neg"], max_seq_length=16)
    with pytest.raises(InputError, match="no trained model yet"):
        classifier.predict(TEXTS)
    scores = classifier.fit(TEXTS, LABELS, validation_split=0.25, **LEARN | {"evaluate_every": 30})
    assert scores["eval_accuracy"] == 1.0
    assert classifier.labels == ["pos", "neg"]
    assert classifier.predict(TEXTS[:4]) == LABELS[:4]
    probabilities = classifier.predict_proba(TEXTS[:4])
    assert_close(probabilities.sum(axis=1), 1, 1e-5)
    assert classifier.evaluate(TEXTS, LABELS)["accuracy"] == classifier.score(TEXTS, LABELS) == 1.0
    assert [line["kind"] for line in classifier.history()].count("eval") == 2  # after 30 steps, and at the end

    classifier.save(tmp_path / "saved")
    loaded = bert_tf.Classifier.load(tmp_path / "saved")
    assert_close(loaded.predict_proba(TEXTS[:4]), probabilities, 0)
    with pytest.raises(InputError, match="exists already"):
        classifier.save(str(tmp_path / "saved"))
    loaded.export(tmp_path / "exported")
    assert not caplog.messages
    served = bert_tf.export.load(tmp_path / "exported")
    assert_close(served(text_a=TEXTS[:4])["probabilities"], probabilities, 1e-5)


def test_a_model_that_was_fine_tuned_before_predicts_by_the_names_of_its_classes(pretrained, tmp_path):
    shutil.copy(f"{pretrained}/vocab.txt", tmp_path)
    config = BertConfig.from_json_file(f"{pretrained}/bert_config.json")
    model = with_large_head(ClassifierModel(config, 2))
    weights = {variable.path: variable.numpy() for variable in model.variables}
    convert_checkpoint.write_hf(str(tmp_path), weights, config, {"id2label": {"0": "pos", "1": "neg"}})
    probabilities = {}
    for labels in (None, ("NEG", "pos")):
        read = bert_tf.Classifier.from_pretrained(str(tmp_path), labels, max_seq_length=16)
        assert tuple(read.labels) == (labels or ("pos", "neg"))
        probabilities[labels] = read.predict_proba(TEXTS[:4])
    assert_close(probabilities[None][:, ::-1], probabilities["NEG", "pos"], 1e-6)
    assert read.evaluate(TEXTS[:4], read.predict(TEXTS[:4]))["accuracy"] == 1.0
    with pytest.raises(InputError, match=r"the classes of .* are pos, neg, but those of the task are good, bad"):
        bert_tf.Classifier.from_pretrained(str(tmp_path), ["good", "bad"], max_seq_length=16).predict(TEXTS)
    fresh = bert_tf.Classifier.from_pretrained(str(tmp_path), ["good", "bad"], max_seq_length=16, fresh_head=True)
    for use in (lambda: fresh.predict(TEXTS), lambda: fresh.labels):
        with pytest.raises(InputError, match="no trained model yet"):
            use()
    assert fresh.make_run(None, TrainingConfig("", OptimizerConfig(1.0, 1), 1)).fresh_variables == HEAD_VARIABLES


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
        ({"max_seq_length": 0}, {}, "--max_seq_length is 0, but a whole number of at least 4"),
        ({"max_seq_length": "16"}, {}, "--max_seq_length is '16', but a whole number"),
        ({"reinit_layers": "1"}, {}, "--reinit_layers is '1', but a whole number"),
        ({"bilstm_layers": -1}, {}, "bilstm_layers is -1, but a whole number of at least 0"),
        ({"bilstm_layers": 1, "bilstm_units": 0}, {}, "--bilstm_units is 0, but a whole number of at least 1"),
        ({"class_weights": [1, 2]}, {}, "class_weights is .1, 2., but 'balanced' or a dictionary"),
        ({}, {"batch_size": 8.0}, "--train_batch_size is 8.0, but a whole number"),
        ({}, {"seed": -1}, "--random_seed is -1, but a whole number of at least 0"),
        ({}, {"epochs": "1"}, "--num_train_epochs is '1', but a number"),
        ({}, {"warmup_proportion": 2.0}, "--warmup_proportion is 2.0, but a number from 0 to 1"),
    ],
)
def test_bad_settings_are_named(pretrained, settings, fit, message):
    with pytest.raises(InputError, match=message):
        bert_tf.Classifier.from_pretrained(pretrained, **{"max_seq_length": 16} | settings).fit(
            TEXTS, LABELS, **FIT | fit
        )


@pytest.mark.eager
def test_weights_of_examples(pretrained, tmp_path):
    weights = np.array([1.0, 2.0, 0.0, 1.0] * 6, np.float32)
    # What is learned doesn't depend on the labels of examples with weight 0.
    other = [label if weight else "pos" for label, weight in zip(LABELS, weights, strict=True)]
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, np.array(other), weights)).batch(5)
    for kind, given in {"list": (TEXTS, LABELS, weights), "dataset": (dataset, None, None)}.items():
        estimator = bert_tf.Classifier.from_pretrained(pretrained, output_dir=str(tmp_path / kind), max_seq_length=16)
        x, y, sample_weight = given
        number = int if kind == "list" else np.int64  # settings may be NumPy's numbers
        estimator.fit(
            x,
            y,
            sample_weight=sample_weight,
            max_steps=number(1),
            batch_size=number(8),
            seed=number(7),
            epochs=number(3),
        )
    examples = estimator._task(str(tmp_path / kind / "data"), do_train=True).examples("train")
    assert [row.weight for row in examples] == weights.tolist()
    trained, twin = weights_of(tmp_path / "list"), weights_of(tmp_path / "dataset")
    assert all(np.array_equal(value, twin[name]) for name, value in trained.items())
    loaded = bert_tf.Classifier.load(str(tmp_path / kind))  # reads examples without weights
    assert len(loaded._read("dev", loaded._table(TEXTS, LABELS))[1]) == len(TEXTS)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 23, "x has 24 examples, but 23 weights"),
        ([1.0] * 23 + [-1], r"the weight of example 23 is '-1' \(int\), but a number of at least 0"),
        ([1.0] * 23 + [float("nan")], "the weight of example 23 is 'nan'"),
        ([0.0] * 24, "every row has the weight 0"),
    ],
)
def test_bad_weights_are_named(pretrained, weights, message):
    estimator = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16)
    with pytest.raises(InputError, match=message):
        estimator.fit(TEXTS, LABELS, sample_weight=weights)


def test_several_labels_of_pairs(pretrained):
    estimator = bert_tf.Classifier.from_pretrained(
        pretrained, labels=["fine", "poor"], multi_label=True, max_seq_length=16
    )
    pairs = [(text, "words") for text in TEXTS]
    labels = [[label for label in ("fine", "poor") if label in text] for text in TEXTS]
    flags = np.array([[label in text for label in ("fine", "poor")] for text in TEXTS], np.int64)
    assert estimator._table(pairs, flags.tolist()) == estimator._table(pairs, labels)
    estimator.fit(pairs, labels, **LEARN)
    assert estimator.predict(pairs[:4]) == labels[:4]
    with pytest.raises(InputError, match="x has single texts, but the model was trained on pairs of texts"):
        estimator.predict(TEXTS)
    for other in (bert_tf.Classifier, bert_tf.Regressor, bert_tf.Tagger, bert_tf.MultipleChoice):
        with pytest.raises(InputError, match=r"was trained for .*fresh_head=True"):
            other.from_pretrained(estimator.output_dir, max_seq_length=16)._check_usable()
    # A model that was fine-tuned elsewhere is given both texts too.
    copied = bert_tf.Classifier.from_pretrained(estimator.output_dir, multi_label=True, max_seq_length=16)
    for given, second in ((pairs, "words"), (TEXTS, None)):
        assert {example.text_b for example in copied._read("test", copied._table(given, None))[1]} == {second}


def test_columns_of_flags_need_the_names_of_their_classes(pretrained):
    estimator = bert_tf.Classifier.from_pretrained(pretrained, multi_label=True)
    with pytest.raises(InputError, match=r"example 0 has a label twice: 1, 0, 1\. .* name the classes"):
        estimator._table(TEXTS[:2], [[1, 0, 1], ["a"]])
    for flags in ([[1, 0], [0, 1]], [[1.0, 0.0]] * 2, [[True, False]] * 2, [[1, 0, 1], [0, 0, 0]]):
        with pytest.raises(InputError, match=r"every example has a row of 0 and 1 as its labels.* name the classes"):
            estimator._table(TEXTS[:2], flags)
    for labels in ([[1, 0], [0]], [["1", "0"]] * 2, [[1, 2], [2, 0]], [[], []]):
        assert [row["label"] for row in estimator._table(TEXTS[:2], labels)] == [list(map(str, row)) for row in labels]


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


def test_tags(pretrained, tmp_path):
    sentences = [text.split() for text in TEXTS]
    tags = [["B-ADJ" if word in ("fine", "poor") else "O" for word in words] for words in sentences]
    tagger = bert_tf.Tagger.from_pretrained(pretrained, max_seq_length=16)
    tagger.fit(sentences, tags, validation_data=(sentences[:4], tags[:4]), **LEARN)
    assert tagger.predict(sentences[:4]) == tags[:4]
    assert tagger.evaluate(sentences, tags)["f1"] == 1.0
    for words, row, found in zip(sentences[:4], tags, tagger.predict_entities(sentences[:4]), strict=False):
        places = [(i, i + 1) for i, tag in enumerate(row) if tag != "O"]
        assert [(entity.start, entity.end) for entity in found] == places
        assert [(entity.type, entity.text) for entity in found] == [("ADJ", words[i]) for i, _ in places]
        assert all(0.5 < entity.score <= 1 for entity in found)
    tagger.save(str(tmp_path / "saved"))
    assert bert_tf.Tagger.load(str(tmp_path / "saved")).predict(sentences[:4]) == tags[:4]
    assert bert_tf.Tagger.from_pretrained(str(tmp_path / "saved"))._labels_before() == ["ADJ"]
    with pytest.raises(InputError, match="holds a run of 'ner', which is no task of Classifier"):
        bert_tf.Classifier.load(str(tmp_path / "saved"))


def test_a_mark_of_documents_is_no_word(pretrained):
    tagger = bert_tf.Tagger.from_pretrained(pretrained)
    with pytest.raises(InputError, match="sentence 1 has a word that begins with -DOCSTART-"):
        tagger._table([["a", "day"], ["a", "-DOCSTART-X", "day"]], None)


def test_tags_name_their_types(pretrained):
    for labels, expected in (
        (["O", "B-PER", "I-PER", "B-LOC"], ["PER", "LOC"]),
        (["PER", "B-LOC"], ["PER", "B-LOC"]),
        (None, None),
    ):
        tagger = bert_tf.Tagger.from_pretrained(pretrained, labels)
        assert tagger._data_config("").labels == expected
    with pytest.raises(InputError, match="the label of sentence 0 is 'None', but a list of tags is expected"):
        tagger.fit([["a", "day"]], [None])


def test_a_tagger_reads_the_words_as_they_are_given(pretrained):
    tagger = bert_tf.Tagger.from_pretrained(pretrained, ["PER"])
    sentences = [["\ufeffa", "day"], ["\ufeff"]]
    for given in (sentences, sentences[::-1]):
        tagger._check_usable = lambda: None
        read = tagger._read("test", tagger._table(given, None))[1]
        assert [list(sentence.words) for sentence in read] == given


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "pooled"])
def test_vectors_are_those_of_each_text_alone(pretrained, pooling):
    encoder = bert_tf.Encoder.from_pretrained(pretrained, max_seq_length=16)
    texts = ["day", ("a fine day", "words"), "a fine poor day here words"]
    vectors = encoder.encode(texts, pooling=pooling, batch_size=3)
    for text, vector in zip(texts, vectors, strict=True):
        output = encoder.bert(text)
        states = output.sequence_output[0].numpy()
        expected = {
            "mean": states.mean(axis=0),
            "max": states.max(axis=0),
            "cls": states[0],
            "pooled": output.pooled_output[0].numpy(),
        }[pooling]
        assert_close(vector, expected, 1e-5)
    lengths = np.linalg.norm(encoder.encode(texts, pooling=pooling, normalize=True), axis=1)
    assert_close(lengths, 1, 1e-6)


def test_sizes_that_give_no_vectors_are_refused(pretrained):
    with pytest.raises(InputError, match="max_seq_length is 2, but a whole number of at least 4"):
        bert_tf.Encoder.from_pretrained(pretrained, max_seq_length=2)
    with pytest.raises(InputError, match="batch size is -1, but a whole number of at least 1"):
        bert_tf.Encoder.from_pretrained(pretrained).encode(["day"], batch_size=-1)


def test_inputs_of_all_kinds_are_the_same(pretrained, tmp_path):
    numbers = [label == "pos" for label in LABELS]
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, np.array(numbers, np.int64)))
    inputs = {
        "list": (TEXTS, [int(number) for number in numbers]),
        "numpy": (np.array(TEXTS), np.array(numbers, np.int64)),
        "pandas": (pd.Series(TEXTS), pd.DataFrame({"label": np.array(numbers, np.int64)})),
        "dataset": (dataset, None),
        "batches": (dataset.batch(2), None),
        "tensors": (tf.constant(TEXTS), tf.constant(numbers, tf.int64)),
    }
    written = set()
    for kind, (x, y) in inputs.items():
        estimator = bert_tf.Classifier.from_pretrained(pretrained, output_dir=str(tmp_path / kind), max_seq_length=16)
        table = estimator._table(*rows.with_labels(x, y, "x"))
        tables.write_table(str(tmp_path / f"{kind}.jsonl"), table)
        written.add((tmp_path / f"{kind}.jsonl").read_bytes())
    assert len(written) == 1
    assert rows.validation(dataset.batch(5)) == rows.validation((TEXTS, numbers))
    words = tf.data.Dataset.from_generator(lambda: [["a", "day"]], output_signature=tf.TensorSpec([None], tf.string))
    assert rows.as_list(words, "x", rank=1) == [["a", "day"]]
    pairs = pd.DataFrame({"question": TEXTS, "answer": TEXTS})
    assert rows.as_list(pairs, "x") == [(text, text) for text in TEXTS]
    assert rows.as_list(list(pairs.itertuples()), "x")[0] == (0, TEXTS[0], TEXTS[0])  # a named tuple


def test_paths_may_be_objects(pretrained, tmp_path):
    path = pathlib.Path(pretrained)
    estimator = bert_tf.Classifier.from_pretrained(path, output_dir=tmp_path)
    assert (estimator.output_dir, estimator._init_checkpoint) == (str(tmp_path), pretrained)
    assert bert_tf.load_tokenizer(path).vocab == bert_tf.load(path).tokenizer.vocab
    pretrainer = bert_tf.Pretrainer("tiny", path / "vocab.txt", init_checkpoint=path)
    assert (pretrainer.vocab_file, pretrainer._init_checkpoint) == (f"{pretrained}/vocab.txt", pretrained)
    assert BertConfig.from_json_file(path / "bert_config.json") == estimator.config


def test_batches_of_two_are_no_pairs():
    def read(elements, rank=0, batch=True):
        dataset = tf.data.Dataset.from_tensor_slices(elements)
        return rows.as_list(dataset.batch(2, drop_remainder=True) if batch else dataset, "x", rank)

    texts, labels, pairs = ["a", "b", "c", "d"], [0, 1, 0, 1], [["a", "b"], ["c", "d"]]
    assert read((texts, labels)) == list(zip(texts, labels, strict=True))
    assert read((texts, labels, np.ones(4))) == [(*pair, 1.0) for pair in read((texts, labels))]
    assert read((texts, [[0, 1, 1]] * 4)) == [(text, [0, 1, 1]) for text in texts]
    assert read((texts, texts)) == [(text, text) for text in texts]
    for batch in (True, False):
        assert read((pairs, labels[:2]), batch=batch) == list(zip(pairs, labels, strict=False))
    assert read(pairs) == read(pairs, rank=1) == pairs
    for elements, batch in ((texts, True), (pairs, False)):
        with pytest.raises(InputError, match="x: the data set's elements are tensors of two texts"):
            read(elements, batch=batch)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("one text", ["pos"], "a list of examples is expected"),
        ({"text": TEXTS}, LABELS, r"\(dict\), but a list of examples is expected"),
        (set(TEXTS), LABELS, r"\(set\), but a list of examples is expected"),
        (TEXTS, LABELS[1:], "24 examples, but 23 labels"),
        (TEXTS, None, "labels are needed"),
        ([], [], "no examples"),
        ([*TEXTS[:3], 5], LABELS[:4], r"example 3 is '5' \(int\)"),
        ([*TEXTS[:3], ("a", "b", "c")], LABELS[:4], "example 3 has 3 texts"),
        ([*TEXTS[:3], ("a", "b")], LABELS[:4], "example 0 is one text, but others are pairs"),
        ([*TEXTS[:3], "\ud800"], LABELS[:4], "example 3 has a lone surrogate"),
        (TEXTS[:4], [*LABELS[:3], float("nan")], "example 3 has no label"),
        ([*TEXTS[:3], " "], LABELS[:4], "example 3: the text is empty"),
        (TEXTS[:4], [*LABELS[:3], "other"], "the label 'other' is unknown"),
        ([*TEXTS[:3], b"\xff"], LABELS[:4], r"bytes\) is no UTF-8 text: invalid start byte at byte 0"),
    ],
)
def test_bad_data_are_named(pretrained, x, y, message):
    estimator = bert_tf.Classifier.from_pretrained(pretrained, labels=["pos", "neg"], max_seq_length=16)
    with pytest.raises(InputError, match=message):
        estimator.fit(x, y)


@pytest.mark.parametrize(
    ("given", "to_labels"),
    [
        ([1, 0], [0, 1]),
        (np.array([1, 0]), [0, 1]),
        ([True, False], [False, True]),
        (["1", "0"], ["0", "1"]),
        pytest.param([1, 0], ["neg", "pos"], id="numbers of the labels"),
    ],
)
def test_classes_come_back_in_the_type_that_they_were_given_in(pretrained, tmp_path, given, to_labels):
    named = {"labels": to_labels} if "pos" in to_labels else {}
    classifier = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16, **named)
    classifier.fit(TEXTS, [given[int(label == "neg")] for label in LABELS], **LEARN)
    expected = [to_labels[label == "pos"] for label in LABELS[:4]]
    classifier.save(tmp_path / "saved")
    for model in (classifier, bert_tf.Classifier.load(tmp_path / "saved")):
        assert [model.labels, model.predict(TEXTS[:4])] == [to_labels, expected]
        assert list(map(type, model.predict(TEXTS[:1]))) == [type(to_labels[0])]
        assert model.score(TEXTS[:2], [given[0]] * 2) == 1.0


def test_numbers_may_stand_in_a_column(pretrained):
    regressor = bert_tf.Regressor.from_pretrained(pretrained, max_seq_length=16)
    numbers = np.arange(4.0)
    assert regressor._table(TEXTS[:4], numbers[:, np.newaxis].tolist()) == regressor._table(TEXTS[:4], numbers.tolist())


def test_classes_of_several_types_are_refused(pretrained):
    with pytest.raises(InputError, match="the labels are of the types int and str"):
        bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16).fit(TEXTS[:2], [1, "1"])
    for labels in ("good", 2):
        with pytest.raises(InputError, match=f"labels is {labels!r}, but a list of classes is expected"):
            bert_tf.Classifier.from_pretrained(pretrained, labels=labels)


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
    with pytest.raises(InputError, match=r"validation_split is 1\.5"):
        estimator.fit(TEXTS, LABELS, validation_split=1.5)
    with pytest.raises(InputError, match=r"validation_data is .* \(list\), but a pair \(examples, labels\)"):
        estimator.fit(TEXTS, LABELS, validation_data=TEXTS)
    with pytest.raises(TypeError, match=r"no argument 'callbacks'; besides its own, it takes save_checkpoints_steps"):
        estimator.fit(TEXTS, LABELS, callbacks=[])
    with pytest.raises(InputError, match=r"--learning_rate is .*CosineDecay"):
        estimator.fit(TEXTS, LABELS, learning_rate=keras.optimizers.schedules.CosineDecay(1e-3, 10))
    tagger = bert_tf.Tagger.from_pretrained(pretrained, max_seq_length=16)
    with pytest.raises(InputError, match=r"Tagger\.fit\(\): sample_weight is given, but only Classifier and Regressor"):
        tagger.fit([["a"]], [["O"]], sample_weight=[1.0])
    with pytest.raises(InputError, match="need validation data"):
        estimator.fit(TEXTS, LABELS, keep_best=True)
    with pytest.raises(TypeError, match="no setting 'multilabel'"):
        bert_tf.Classifier.from_pretrained(pretrained, multilabel=True)
    with pytest.raises(InputError, match="pooling is 'sum'"):
        bert_tf.Encoder.from_pretrained(pretrained).encode(["a"], pooling="sum")
    with pytest.raises(AttributeError, match="no attribute 'Klassifier'"):
        _ = bert_tf.Klassifier


def test_questions(pretrained, tmp_path):
    contexts = ["a fine day here", "poor words a day", "here fine words", "a poor day words"] * 6
    questions = [("fine words" if "fine" in context else "poor words", context) for context in contexts]
    answers = ["fine" if "fine" in context else ("poor", context.index("poor")) for context in contexts]
    options = {"max_seq_length": 16, "doc_stride": 4, "max_query_length": 4, "max_answer_length": 3}
    answerer = bert_tf.QuestionAnswerer.from_pretrained(pretrained, output_dir=str(tmp_path / "run"), **options)
    with pytest.raises(InputError, match="no trained model yet"):
        answerer.predict(questions)
    scores = answerer.fit(questions, answers, validation_split=0.25, **LEARN)
    assert scores == {"exact_match": 100.0, "f1": 100.0}
    assert answerer.predict(questions[:4]) == ["fine", "poor", "fine", "poor"]
    assert answerer.evaluate(questions, answers)["exact_match"] == answerer.score(questions, answers) == 100.0
    best = answerer.predict_n_best(questions[:2])
    assert [entries[0]["text"] for entries in best] == ["fine", "poor"]
    assert sum(entry["probability"] for entry in best[0]) == pytest.approx(1)
    nothing = ("fine words", "")
    assert answerer.predict([nothing, questions[0]]) == ["", "fine"]
    assert answerer.predict_n_best([nothing, questions[0]]) == [[], best[0]]
    longer = {"output_dir": str(tmp_path / "run"), **options, "max_seq_length": 20}
    with pytest.raises(InputError, match="max_seq_length was 16, and is 20 now"):
        bert_tf.QuestionAnswerer.from_pretrained(pretrained, **longer).predict(questions[:1])
    answerer.save(str(tmp_path / "saved"))
    saved = str(tmp_path / "saved")
    for loaded in (
        bert_tf.QuestionAnswerer.load(saved),
        bert_tf.QuestionAnswerer.from_pretrained(saved, **options),
    ):
        assert loaded.predict_n_best(questions[:2]) == best
    data = tmp_path / "run" / "data"
    assert [(data / f"{split}.json").read_text().count("context") for split in ("train", "dev")] == [18, 6]
    with pytest.raises(InputError, match=r"the answer 'gone' of example 0 is not in its context"):
        answerer.fit(questions[:1], ["gone"])
    with pytest.raises(InputError, match="a pair \\(question, context\\) is expected"):
        answerer.predict(["a question"])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (("fine", 2, 6), r"the answer of example 0 is \"\('fine', 2, 6\)\", but a text or a pair"),
        (("fine", None), "but a text or a pair"),
        (("fine", True), "but a text or a pair"),
        ((5, 0), "but a text or a pair"),
        (None, "the answer of example 0 is 'None', but a text or a pair"),
        (" ", "the answer of example 0 is ' '; give words of the context"),
        ((" ", 1), "the answer of example 0 is ' '; give words of the context"),
        ({"text": ["fine"], "answer_start": []}, "but a text or a pair"),
        (("fine", 3), "the answer 'fine' of example 0 is not at character 3 of its context"),
        ("", r"example 0 has no answer.* version_2_with_negative=True to from_pretrained\(\)"),
    ],
)
def test_answers_of_other_kinds_are_refused(pretrained, answer, message):
    answerer = bert_tf.QuestionAnswerer.from_pretrained(pretrained, max_seq_length=16)
    with pytest.raises(InputError, match=message):
        answerer.fit([("fine words", "a fine day")], [answer])


def test_questions_and_contexts_are_found_by_name(pretrained):
    answerer = bert_tf.QuestionAnswerer.from_pretrained(pretrained, max_seq_length=16, max_query_length=4)
    written = []
    answerer.carry_out = lambda run, config: written.append(
        [run.task.examples("train_1"), run.task.examples("predict")]
    )
    question, context, answer = "fine words", "a fine day", {"text": ["fine"], "answer_start": np.array([2])}
    named = [{"id": "x", "context": context, "question": question, "answers": answer}] * 2
    frame = pd.DataFrame(named)
    validation = {"validation_data": ([(question, context)], ["fine"])}
    for x, y in (([(question, context)] * 2, ["fine"] * 2), (named, None), (frame, None), (frame, frame["answers"])):
        answerer.fit(x, y, **validation)
    answerer.fit(frame[["context", "question"]], [answer] * 2, validation_data=(frame[:1], None))
    assert written == written[:1] * 5
    assert (written[0][0][0].question_text, written[0][0][0].context) == (question, context)
    with pytest.raises(InputError, match="example 0 has 'context', 'id', but 'question' and 'context' are expected"):
        answerer.fit(frame[["context", "id"]], ["fine"] * 2)


def test_of_several_answers_the_first_that_is_found_is_trained_on_and_the_best_one_counts(pretrained):
    answerer = bert_tf.QuestionAnswerer.from_pretrained(pretrained, max_seq_length=16, max_query_length=4)
    written = []
    answerer.carry_out = lambda run, config: written.extend(run.task.examples("train_1"))
    example = ("fine words", "a fine day")
    answerer.fit([example], [["gone", "day", ("fine", 2)]])
    assert written[0].orig_answer_text == "day"
    answerer._answers = lambda table: (
        types.SimpleNamespace(
            articles=[{"paragraphs": [{"context": "", "qas": [table[0]["question"]]}]}], config=answerer._config()
        ),
        types.SimpleNamespace(answers={"0": "fine"}),
    )
    assert answerer.evaluate([example], [["gone", ("fine", 2)]]) == {"exact_match": 100.0, "f1": 100.0}
    assert answerer.evaluate([example], ["gone"])["f1"] == 0.0


@pytest.mark.eager
def test_questions_are_validated_as_rows_are(pretrained, tmp_path):
    contexts = ["a fine day here", "poor words a day"] * 4
    questions, answers = [("fine words", context) for context in contexts], ["fine", ""] * 4
    options = {"max_seq_length": 16, "doc_stride": 4, "max_query_length": 4, "version_2_with_negative": True}
    answerer = bert_tf.QuestionAnswerer.from_pretrained(pretrained, **options)
    scores = answerer.fit(
        questions, answers, validation_data=(questions[:4], answers[:4]), max_steps=2, evaluate_every=1, keep_best=True
    )
    looked_at = [line["best_f1"] for line in answerer.history() if line["kind"] == "eval"]
    assert len(looked_at) == 2
    assert scores["best_f1"] == max(looked_at)
    answerer.save(str(tmp_path / "saved"))
    loaded = bert_tf.QuestionAnswerer.load(str(tmp_path / "saved"))
    assert loaded._answerer.null_score_diff_threshold == scores["best_f1_thresh"]
    with pytest.raises(InputError, match="need validation data"):
        answerer.fit(questions, answers, early_stopping_patience=1)
    with pytest.raises(InputError, match=r"validation_split is 1 of 8"):
        answerer.fit(questions, answers, validation_split=1)
