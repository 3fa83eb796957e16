"""Models in the formats of other libraries are read with the correct values, sizes and tokenizer."""

import json
import zlib

import h5py
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import checkpoints, convert_checkpoint
from bert_tf.checkpoints import class_names, pretrained, run_directory
from bert_tf.checkpoints.legacy import torch_file
from bert_tf.checkpoints.restoring import restore
from bert_tf.encoder import BertEncoder
from tests.checkpoints.legacy import writers
from tests.checkpoints.legacy.writers import CONFIG, INPUTS, PIECES
from tests.conftest import assert_close, assert_refused, tensors_of

HEADS = [(), ("masked LM",), ("next sentence",), ("masked LM", "next sentence"), ("classifier",), ("answerer",)]
TANH = CONFIG.replace(hidden_act="gelu")
PRESET = TANH.replace(hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.25)


@pytest.fixture(autouse=True)
def vocab_file(tmp_path):
    path = tmp_path / "pieces.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


def assert_has(path, weights, config=CONFIG):
    """Checks the config, all arrays, and the outputs of the encoder."""
    loaded = bert_tf.load_model(path)
    assert loaded.config == config
    assert loaded.source.shapes == {name: array.shape for name, array in weights.items()}
    np.testing.assert_equal({name: loaded.source.read(name) for name in weights}, dict(weights))
    for variable in loaded.encoder.weights:
        np.testing.assert_array_equal(variable, weights[variable.path])
    return loaded


def in_shards(directory, weights, write, stem, suffix, **options):
    names = [*weights]
    parts = [names[::2], names[1::2]]
    files = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    for part, file in zip(parts, files, strict=True):
        write(directory / file, {name: weights[name] for name in part}, **options)
    index = {"weight_map": {name: file for part, file in zip(parts, files, strict=True) for name in part}}
    (directory / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(("heads", "is_sharded"), [*((heads, False) for heads in HEADS), (("masked LM",), True)])
@pytest.mark.parametrize(
    ("write", "stem", "suffix", "of_shards"),
    [(writers.write_bin, "pytorch_model", "bin", {}), (writers.write_h5, "tf_model", "h5", {"model": ""})],
    ids=["PyTorch", "HDF5"],
)
def test_models_of_transformers(tmp_path, heads, is_sharded, write, stem, suffix, of_shards):
    weights = writers.arrays(heads=heads)
    writers.write_files(tmp_path / "m")
    if is_sharded:
        in_shards(tmp_path / "m", weights, write, stem, suffix, **of_shards)
    else:
        write(tmp_path / f"m/{stem}.{suffix}", weights)
    loaded = assert_has(tmp_path / "m", weights)
    assert loaded.tokenizer.rules["do_lower_case"] is False


@pytest.mark.parametrize("is_older", [False, True], ids=["zip", "before 1.6"])
def test_half_precision_copies_and_old_names(tmp_path, is_older):
    weights = writers.arrays(heads=("masked LM",))
    stored = {name: array.astype(np.float16) for name, array in writers.hf_arrays(weights).items()}
    stored["cls.predictions.decoder.weight"] = stored["bert.embeddings.word_embeddings.weight"]
    stored["bert.embeddings.position_ids"] = np.arange(4)[None]
    stored = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): array for name, array in stored.items()}
    path = tmp_path / "m/pytorch_model.bin"
    writers.write_files(tmp_path / "m")
    if is_older:
        writers.write_older_bin(path, stored)
    else:
        types = {name: writers.STORAGES[array.dtype.char] for name, array in stored.items()}
        items = {name: writers.tensor(name, stored[name].shape, storage=types[name]) for name in stored}
        writers.write_torch(path, items, {name: array.tobytes() for name, array in stored.items()})
    assert_has(tmp_path / "m", {name: array.astype(np.float16) for name, array in weights.items()})


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_decoder_with_weights_of_its_own_is_refused(tmp_path, part):
    stored = writers.hf_arrays(writers.arrays(heads=("masked LM",)))
    copied = {"weight": "bert.embeddings.word_embeddings.weight", "bias": "cls.predictions.bias"}[part]
    stored[f"cls.predictions.decoder.{part}"] = stored[copied] + 1
    writers.write_older_bin(tmp_path / "pytorch_model.bin", stored)
    message = f"cls.predictions.decoder.{part} and {copied} are both .*, but differ"
    assert_refused(message, checkpoints.open_checkpoint, tmp_path)


def test_views_of_one_storage_are_checked_once(tmp_path, monkeypatch):
    weights = writers.arrays()
    stored = writers.hf_arrays(weights)
    size, offset, items = sum(array.size for array in stored.values()), 0, {}
    for name, array in stored.items():
        items[name] = writers.tensor("0", array.shape, size=size, offset=offset)
        offset += array.size
    writers.write_files(tmp_path / "m")
    data = b"".join(array.tobytes() for array in stored.values())
    writers.write_torch(tmp_path / "m/pytorch_model.bin", items, {"0": data})
    checked, crc32 = [], zlib.crc32
    monkeypatch.setattr(torch_file.zlib, "crc32", lambda data: checked.append(data) or crc32(data))
    assert_has(tmp_path / "m", weights)
    assert len(checked) == len({*checked})


def test_class_names_and_conversion(tmp_path):
    weights = writers.arrays(heads=("classifier",))
    names = {"id2label": {"0": "w", "1": "x", "2": "y", "3": "z"}}
    writers.write_files(tmp_path / "m", architecture="BertForSequenceClassification", **names)
    writers.write_h5(tmp_path / "m/tf_model.h5", weights, "tf_bert_for_sequence_classification/")
    source = checkpoints.open_checkpoint(tmp_path / "m")
    assert class_names.recorded_classes(source) == ("w", "x", "y", "z")
    for name in ("hf", "tf1"):
        convert_checkpoint.convert(tmp_path / "m", tmp_path / name, name)
        assert_has(tmp_path / name, weights)
    assert json.loads((tmp_path / "hf/config.json").read_text())["id2label"] == names["id2label"]
    classifier = bert_tf.Classifier.from_pretrained(tmp_path / "m", labels=["z", "y", "x", "w"], max_seq_length=8)
    np.testing.assert_allclose(classifier.predict_proba(["a b"]).sum(), 1, atol=1e-6)


def test_tensorflow_hub(tmp_path, vocab_file, capsys):
    weights = writers.arrays(TANH, ("masked LM",))
    writers.write_saved_model(tmp_path / "hub", writers.Garden(weights, TANH, prefix=""), vocab_file, lower=False)
    loaded = assert_has(tmp_path / "hub", weights, TANH)
    assert not loaded.tokenizer.rules["do_lower_case"] and list(loaded.tokenizer.vocab) == PIECES
    assert "dropout rates are not recorded" in capsys.readouterr().err
    convert_checkpoint.convert(tmp_path / "hub", tmp_path / "tf1", "tf1")
    assert_has(tmp_path / "tf1", weights, TANH)


@pytest.mark.parametrize("prefix", ["", "module/"])
def test_tensorflow_hubs_first_format(tmp_path, vocab_file, prefix):
    weights = writers.arrays(heads=("masked LM",))
    writers.write_v1(tmp_path / "hub", weights, vocab_file=vocab_file, prefix=prefix)
    loaded = assert_has(tmp_path / "hub", weights)
    assert loaded.tokenizer.rules["do_lower_case"] is False


def architecture(loaded):
    directory = run_directory.directory_of_checkpoint(loaded.source.path)
    with open(f"{directory}/config.json") as reader:
        return json.load(reader).get("architectures")


def test_an_estimators_saved_model(tmp_path):
    weights = writers.arrays(TANH, ("classifier",))
    writers.write_v1(tmp_path / "m", weights, TANH)
    loaded = assert_has(tmp_path / "m", weights, TANH)
    assert loaded.tokenizer is None
    assert architecture(loaded) == ["BertForSequenceClassification"]


@pytest.mark.parametrize(
    "heads, expected",
    [("classifier", ["BertForSequenceClassification"]), ("answerer", ["BertForQuestionAnswering"]), (None, None)],
)
def test_model_gardens_classifiers(tmp_path, heads, expected):
    weights = writers.arrays(heads=[heads] if heads else [])
    name = "sentence_prediction/logits" if heads == "classifier" else "predictions/transform/logits"
    model = writers.Garden(weights, head=name)
    writers.write_saved_model(tmp_path / "m", model)
    loaded = assert_has(tmp_path / "m", weights)
    assert architecture(loaded) == expected
    outputs = model(*INPUTS)
    assert_close(loaded.encoder(*INPUTS).sequence_output, outputs["sequence_output"], 1e-5)
    assert_close(loaded.encoder(*INPUTS).pooled_output, outputs["pooled_output"], 1e-5)


@pytest.mark.parametrize("name", ["classifier", "head/out"])
def test_the_output_layer_of_a_keras_model_has_any_name(tmp_path, capsys, name):
    weights = writers.arrays(heads=("classifier",))
    writers.write_saved_model(tmp_path / "m", writers.Garden(weights, head=name))
    assert_has(tmp_path / "m", weights)
    found = capsys.readouterr().err
    assert f"{name} is used as an output layer" in found
    assert "the output layer (output_weights, output_bias) is not" in found


def test_a_pooler_of_the_output_layer_and_a_config_next_to_the_model_take_precedence(tmp_path, capsys):
    weights = writers.arrays(heads=("classifier",))
    model = writers.Garden(weights)
    own = {"kernel": np.full((12, 12), 2.0, np.float32), "bias": np.full(12, 3.0, np.float32)}
    model.own = [tf.Variable(array, name=f"sentence/pooler_dense/{leaf}") for leaf, array in own.items()]
    writers.write_saved_model(tmp_path / "m", model)
    config = CONFIG.replace(hidden_act="relu", hidden_dropout_prob=0.3)
    (tmp_path / "m/bert_config.json").write_text(config.to_json_string())
    assert_has(tmp_path / "m", weights | {f"bert/pooler/dense/{leaf}": array for leaf, array in own.items()}, config)
    assert "unused tensors: bert_encoder_v2/pooler_transform/" in capsys.readouterr().err


@pytest.mark.parametrize("task, heads", [("", ()), ("BertMaskedLM", ("masked LM",))])
def test_presets_of_keras_hub(tmp_path, task, heads):
    weights = writers.arrays(TANH, heads)
    writers.write_preset(tmp_path / "m", weights, TANH, task)
    config = PRESET
    if task == "BertMaskedLM":  # the settings of KerasHub's head differ from the encoder's
        config = config.replace(mlm_hidden_act="gelu_erf", mlm_layer_norm_eps=1e-5)
    loaded = assert_has(tmp_path / "m", weights, config)
    assert loaded.tokenizer.rules == {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": True}
    convert_checkpoint.convert(tmp_path / "m", tmp_path / "hf", "hf")
    assert_has(tmp_path / "hf", weights, config)


def test_the_masked_lm_head_of_keras_hub_has_its_own_activation_and_epsilon(tmp_path, capsys):
    weights = writers.arrays(TANH, ("masked LM",))
    writers.write_preset(tmp_path / "m", weights, TANH, "BertMaskedLM")
    head = bert_tf.load_model(tmp_path / "m").masked_lm("load()")
    states = np.random.default_rng(0).normal(size=(1, 1, 12)).astype(np.float32) * 0.02
    names = ("dense/kernel", "dense/bias", "LayerNorm/gamma", "LayerNorm/beta")
    kernel, bias, gamma, beta = (weights[f"cls/predictions/transform/{name}"] for name in names)
    x = np.array(tf.nn.gelu(states[0, 0] @ kernel + bias, approximate=False))
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * gamma + beta
    table = weights["bert/embeddings/word_embeddings"]
    expected = table @ x + weights["cls/predictions/output_bias"]
    assert_close(np.ravel(head(states, np.zeros((1, 1), np.int32), table)), expected, 1e-5)
    convert_checkpoint.convert(tmp_path / "m", tmp_path / "tf1", "tf1")
    assert "other programs don't support mlm_hidden_act" in capsys.readouterr().err


def test_bfloat16_arrays_of_keras(tmp_path):
    weights = writers.arrays(TANH)
    writers.write_preset(tmp_path / "m", weights, TANH)
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in weights.items()}
    with h5py.File(tmp_path / "m/model.weights.h5", "a") as file:
        for released, array in rounded.items():
            name = writers.hub_name(released)[1]
            del file[name]
            file[name] = writers.garden_array(released, array).view("V2")
    np.testing.assert_equal(tensors_of(tmp_path / "m"), {name: x.astype(np.float32) for name, x in rounded.items()})


def test_models_in_a_bucket(tmp_path):
    weights = writers.arrays()
    for name, write in (("tf_model.h5", writers.write_h5), ("pytorch_model.bin", writers.write_bin)):
        writers.write_files(tmp_path / name)
        write(tmp_path / name / name, weights)
        url = f"ram://{name}"
        tf.io.gfile.makedirs(url)
        for path in (tmp_path / name).iterdir():
            tf.io.gfile.copy(str(path), f"{url}/{path.name}", overwrite=True)
        assert_has(url, weights)


def test_every_door_reads_a_preset(tmp_path, capsys):
    weights = writers.arrays(TANH, ("classifier",))
    writers.write_preset(tmp_path / "m", weights, TANH, "BertTextClassifier", activation="softmax")
    source = checkpoints.open_checkpoint(tmp_path / "m/model.weights.h5")
    encoder = BertEncoder(TANH)
    summary = restore(checkpoints.named_variables(encoder.weights), source)
    assert summary.ignored == ("output_weights", "output_bias") and "2 checkpoint tensors unused" in str(summary)
    classifier = bert_tf.Classifier.from_pretrained(tmp_path / "m", labels=["0", "1", "2", "3"], max_seq_length=8)
    loaded = assert_has(tmp_path / "m", weights, PRESET)
    logits = loaded("a b").pooled_output @ weights["output_weights"].T + weights["output_bias"]
    assert_close(classifier.predict_proba(["a b"]), tf.nn.softmax(logits), 1e-5)
    assert bert_tf.load_tokenizer(tmp_path / "m").vocab == loaded.tokenizer.vocab
    config, tokenizer = pretrained.read_model(pretrained.ModelFiles(str(tmp_path / "m")))
    assert config == loaded.config and tokenizer.vocab == loaded.tokenizer.vocab
