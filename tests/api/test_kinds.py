"""Tests taggers, sentence encoders and pre-trainers."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import export
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import TokenModel
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import DataConfig
from tests import programs
from tests.conftest import assert_close, assert_refused, tensors_of
from tests.programs import LENGTH, PREDICTIONS

pytestmark = [pytest.mark.eager, pytest.mark.plain]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["NOUN", "VERB", "ADJ"], ["NOUN", "VERB", "ADJ"]),
        (["I-PER", "O", "B-PER"], ["O", "B-PER", "I-PER"]),
        (["LABEL_0", "LABEL_1", "LABEL_2"], None),
        (["PER-I", "O", "PER-B"], ["O", "B-PER", "I-PER"]),
        (["i_per", "b_per", "O"], ["O", "B-per", "I-per"]),
        (["B", "I", "O"], ["O", "B-_", "I-_"]),
        (["O", "S-PER", "B-PER", "I-PER", "E-PER"], ["O", "S-PER", "B-PER", "I-PER", "E-PER"]),
        (["O", "PER_S", "PER_B", "PER_M", "PER_E"], ["O", "S-PER", "B-PER", "M-PER", "E-PER"]),
        (["O", "I-PER", "I-LOC"], ["O", "I-PER", "I-LOC"]),
    ],
)
def test_tags_of_models_from_elsewhere(fine_tuned, names, labels):
    directory = fine_tuned(TokenModel, names, architectures=["BertForTokenClassification"])
    tagger = bert_tf.TokenClassifier.from_pretrained(directory, max_seq_length=16)
    if labels is None:
        assert_refused("does not name its classes", tagger.predict, [["a", "day"]])
    else:
        assert tagger.labels == labels
        assert set(tagger.predict([["a", "day"]])[0]) <= set(labels)


def test_a_tagger_with_single_and_last_words_is_used_and_trained_further(fine_tuned, tmp_path):
    names, sentences = ["E-A", "O", "B-A", "S-A", "I-A"], [["a", "fine"], ["day", "here"]]
    settings = {"architectures": ["BertForTokenClassification"], "bias": [0, 0, 0, 90, 0]}
    tagger = bert_tf.TokenClassifier.from_pretrained(fine_tuned(TokenModel, names, **settings), max_seq_length=16)
    assert tagger.predict(sentences) == [["S-A", "S-A"]] * 2
    assert [entity[:4] for entity in tagger.predict_entities(sentences)[0]] == [("A", "a", 0, 1), ("A", "fine", 1, 2)]
    assert tagger.evaluate(sentences, [["S-A", "S-A"], ["U-A", "O"]])["f1"] == pytest.approx(2 * 3 / 4 / 1.75)
    tagger.fit(sentences, [["S-A", "O"], ["B-A", "E-A"]], epochs=1, batch_size=2, learning_rate=1e-9)
    assert tagger.labels == names
    tagger.save(tmp_path / "saved")
    loaded = bert_tf.TokenClassifier.load(tmp_path / "saved")
    assert loaded.predict(sentences) == [["S-A", "S-A"]] * 2
    served = export.build(tagger.output_dir, ExportConfig()).served.signatures()["serving_default"]
    assert served(text_a=tf.constant(["a fine", "day"]))["entities"][0].numpy().tolist() == [b"a", b"fine"]


def test_a_directory_that_does_not_exist_is_not_searched_on_the_hub(pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for config in (DataConfig("ner", "."), DataConfig("text", ".", problem="regression")):
        for do_train in (False, True):
            assert registry.build_task(config, "runs/new", do_train).name == config.task_name


def test_tags_name_their_types(pretrained):
    for labels, expected in (
        (["O", "B-PER", "I-PER", "B-LOC"], ["PER", "LOC"]),
        (["PER", "B-LOC"], ["PER", "B-LOC"]),
        (None, None),
    ):
        tagger = bert_tf.TokenClassifier.from_pretrained(pretrained, labels)
        assert tagger._requested_types == expected
    assert_refused("the label of sentence 0 is 'None'", tagger.fit, [["a", "day"]], [None])


def test_a_tagger_reads_the_words_as_they_are_given(pretrained):
    tagger = bert_tf.TokenClassifier.from_pretrained(pretrained, ["PER"])
    sentences = [["\ufeffa", "day"], ["\ufeff"]]
    for given in (sentences, sentences[::-1]):
        examples = tagger._examples(given, [["O"] * len(words) for words in given])
        task = tagger._task({"train": examples}, does_train=True)
        assert [list(sentence.words) for sentence in task.examples("train")] == given


def test_vectors_are_those_of_each_text_alone(pretrained):
    encoder = bert_tf.SentenceEncoder.from_pretrained(pretrained, max_seq_length=16)
    texts = ["day", ("a fine day", "words"), "a fine poor day here words"]
    outputs = [encoder.bert(text) for text in texts]
    states = [output.sequence_output[0].numpy() for output in outputs]
    for pooling, expected in {
        "mean": [x.mean(axis=0) for x in states],
        "max": [x.max(axis=0) for x in states],
        "cls": [x[0] for x in states],
        "pooled": [output.pooled_output[0].numpy() for output in outputs],
    }.items():
        assert_close(encoder.encode(texts, pooling=pooling, batch_size=3), expected, 1e-5, pooling)
        lengths = np.linalg.norm(encoder.encode(texts, pooling=pooling, normalize=True), axis=1)
        assert_close(lengths, 1, 1e-6)


LENGTHS = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS}
FIT = {**LENGTHS, "epochs": 0.6, "batch_size": 8, "learning_rate": 1e-3, "warmup_proportion": 0.4}


def test_weights_are_those_of_the_program_and_classifiers_start_from_them(tmp_path):
    config, vocab = programs.write_model_files(tmp_path)
    data = [programs.write_pretraining_data(tmp_path / f"{name}.tfrecord", 40, seed=i) for i, name in enumerate("ab")]
    bert_config = BertConfig.from_json_file(config)
    pretrainer = bert_tf.Pretrainer(bert_config, vocab, output_dir=str(tmp_path / "ours"))
    assert_refused("Pretrainer: there is no trained model yet", pretrainer.save, str(tmp_path / "saved"))
    message = "use_best_checkpoint is used only with validation_data. Pass validation_data too"
    assert_refused(message, pretrainer.fit, data[0], use_best_checkpoint=True, **FIT)
    assert_refused("either num_train_steps or epochs", pretrainer.fit, data[0], num_train_steps=3, **FIT)
    with pytest.raises(TypeError, match=r"Pretrainer.fit\(\) has no argument 'oops'"):
        pretrainer.fit(data[0], oops=1, **FIT)
    train, dev = map(pathlib.Path, data)
    scores = pretrainer.fit(train, validation_data=dev, evaluate_every=2, use_best_checkpoint=True, **FIT)
    assert scores["masked_lm_loss"] > 0
    assert [line["step"] for line in pretrainer.history() if line["kind"] == "eval"] == [2, 3]
    flags = {"bert_config_file": config, "vocab_file": vocab, "input_file": data[0], "output_dir": tmp_path / "theirs"}
    flags |= {**LENGTHS, "num_train_steps": 3, "num_warmup_steps": 1, "train_batch_size": 8, "learning_rate": 1e-3}
    programs.run("run_pretraining.py", "--do_train", *(f"--{name}={value}" for name, value in flags.items()))
    np.testing.assert_equal(*(tensors_of(tmp_path / run / "model.ckpt-3") for run in ("ours", "theirs")))
    pretrainer.save(str(tmp_path / "saved"))
    further = bert_tf.Pretrainer.from_pretrained(str(tmp_path / "saved"), objective="mlm")
    assert further.config == bert_config
    assert further._start == str(tmp_path / "saved")
    loaded = bert_tf.load_model(str(tmp_path / "saved"))
    first = loaded.encoder.weights[0]
    np.testing.assert_equal(first.numpy(), tensors_of(tmp_path / "ours" / "best")[first.path])
