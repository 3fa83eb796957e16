import json
import re

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from bert_tf import checkpoints, convert_checkpoint, optimization
from bert_tf.checkpoints import variable_names
from bert_tf.checkpoints.saver import write_checkpoint
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.models import ClassifierModel, SpanModel
from bert_tf.optimization import OptimizerConfig
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime.files import InputError
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.training import resume
from tests.checkpoints.legacy import writers
from tests.conftest import assert_close, assert_refused, golden_path, tensors_of, tiny_config, weights_of
from tests.finished_runs import write_model


def weights(model):
    return {variable.path: variable.numpy() for variable in weights_of(model)}


def save_tf1(directory, model, extra=None):
    write_checkpoint(str(directory / "bert_model.ckpt"), weights(model) | (extra or {}))
    (directory / "bert_config.json").write_text(tiny_config().to_json_string())
    return str(directory / "bert_model.ckpt")


@pytest.mark.parametrize(
    ("model_class", "act"),
    [(PretrainingModel, "gelu"), (SpanModel, "gelu_erf"), (lambda c: ClassifierModel(c, 3), "relu")],
)
def test_round_trips_are_exact(tmp_path, model_class, act):
    config = tiny_config(hidden_act=act)
    model = model_class(config)
    first, hf, back = tmp_path / "first", tmp_path / "hf", tmp_path / "back"
    write_model(first, model, SPECIAL_TOKENS)
    assert_refused(r"--format is 'pt'.* tf1, hf", convert_checkpoint.convert, first, hf, "pt")
    convert_checkpoint.convert(first, hf, "hf")
    assert "---\nlibrary_name: transformers\npipeline_tag: " in (hf / "README.md").read_text()
    convert_checkpoint.convert(str(hf), str(back), "tf1")
    np.testing.assert_equal(tensors_of(back), weights(model))
    assert BertConfig.from_json_file(str(back / "bert_config.json")) == config
    assert (back / "vocab.txt").read_text() == (first / "vocab.txt").read_text()


@pytest.mark.golden
def test_released_checkpoint_is_unchanged_after_conversion_to_hf_and_back(tmp_path):
    original = golden_path("model/smallvar")
    convert_checkpoint.convert(str(original), str(tmp_path / "hf"), "hf")
    convert_checkpoint.convert(str(tmp_path / "hf"), str(tmp_path / "tf1"), "tf1")
    before = tensors_of(original / "bert_model.ckpt")
    # The original code reads checkpoints with TensorFlow 1's Saver.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {name: tf.compat.v1.get_variable(name, x.shape, use_resource=False) for name, x in before.items()}
        tf.compat.v1.train.Saver().restore(session, str(tmp_path / "tf1" / "bert_model.ckpt"))
        np.testing.assert_equal(session.run(variables), before)


@pytest.mark.parametrize("name", optimization.OPTIMIZERS)
def test_the_state_of_every_optimizer_is_known_by_its_names_and_left_out(tmp_path, name):
    model = PretrainingModel(tiny_config())
    state = optimization.build_optimizer(OptimizerConfig(1.0, 1, optimizer=name), model.trained_variables).state()
    assert all(re.fullmatch(optimization.TRAINING_STATE, path) for path in state)
    changes = [f"bert/pooler/dense/kernel/{name}" for name in ("lora_A", "mask", "adapters/dense/kernel", "act_quant")]
    assert not any(re.fullmatch(optimization.TRAINING_STATE, path) for path in (*weights(model), *changes))
    others = ("Adam", "Adam_1", "AdamWeightDecayOptimizer_1", "ExponentialMovingAverage", "LAMB_1", "Adafactor", "vr")
    others += ("ExponentialMovingAverage/biased", "accum")
    state |= {f"bert/pooler/dense/kernel/{name}": np.zeros((12, 12), np.float32) for name in others}
    scalars = ("beta1_power", "beta2_power", "loss_scale", "good_steps", "bad_steps", "current_loss_scale")
    state |= dict.fromkeys((*scalars, "local_step", "batch_finite", "train/global_step"), np.float32(1))
    source = checkpoints.open_checkpoint(save_tf1(tmp_path, model, state))
    summary = checkpoints.restore(checkpoints.named_variables(model.variables), source, may_be_new="")  # for evaluation
    assert set(summary.ignored) == set(state)
    assert checkpoints.matching_weights(source, tiny_config(), "--input").keys() == weights(model).keys()


def test_unused_and_missing_tensors_and_wrong_shapes_are_listed(tmp_path):
    prefix = save_tf1(tmp_path, BertEncoder(tiny_config()), {"bert/extra": np.zeros(2)})
    deeper = BertEncoder(tiny_config(num_hidden_layers=3, vocab_size=43))
    before = weights(deeper)
    with pytest.raises(InputError) as error:
        checkpoints.restore(checkpoints.named_variables(deeper.weights), prefix)
    message = str(error.value)
    assert "bert/embeddings/word_embeddings has shape [41, 12] in the checkpoint, but [43, 12] in the model" in message
    assert "bert/encoder/layer_2/attention/self/query/kernel is in the model, but not in the checkpoint" in message
    assert "bert/extra is in the checkpoint, but not in the model" in message
    np.testing.assert_equal(weights(deeper), before)
    write_checkpoint(str(tmp_path / "student"), {f"student/{name}": array for name, array in before.items()})
    message = "student has no bert/embeddings/word_embeddings, but student/bert"
    assert_refused(message, checkpoints.restore, checkpoints.named_variables(deeper.weights), tmp_path / "student")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.model.bert."])
def test_hf_checkpoints_with_old_names_and_half_precision_are_read(prefix, tmp_path):
    model = BertEncoder(tiny_config())
    stored = {}
    for name, value in weights(model).items():
        value = value.T if variable_names.hf_is_transposed(name) else value
        hf = variable_names.released_to_hf(name).removeprefix("bert.")
        if "LayerNorm" in hf:
            hf = hf.replace(".weight", ".gamma").replace(".bias", ".beta")
        stored[prefix + hf] = np.ascontiguousarray(value.astype(ml_dtypes.bfloat16))
    stored[f"{prefix}embeddings.position_ids"] = np.arange(32)
    safetensors.numpy.save_file(stored, tmp_path / "model.safetensors")
    source = checkpoints.open_checkpoint(str(tmp_path))
    assert source.ignored == (f"{prefix}embeddings.position_ids",)
    for name, value in weights(model).items():
        assert_close(source.read(name), value.astype(ml_dtypes.bfloat16).astype(np.float32), 0, name)


def test_any_damage_of_a_written_hf_checkpoint_is_found(tmp_path):
    convert_checkpoint.write_hf(str(tmp_path), weights(BertEncoder(tiny_config())), tiny_config())
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    assert checkpoints.open_checkpoint(str(path)).shapes
    checksum = whole.index(b'"crc32":"') + 9
    header = 8 + int.from_bytes(whole[:8], "little")
    for place in (3, 8, checksum, checksum + 7, 200, header - 1, header, *range(header + 9, len(whole), 5003)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert_refused(r"model[.]safetensors: damaged", checkpoints.open_checkpoint, str(path))


def test_a_pooler_is_left_out_if_it_is_neither_used_nor_in_the_hf_model(tmp_path):
    model = SpanModel(tiny_config())
    tensors = {name: value for name, value in weights(model).items() if "pooler" not in name}
    convert_checkpoint.write_hf(str(tmp_path), tensors, tiny_config())
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForQuestionAnswering"]
    summary = resume.restore_or_initialize(model, {}, str(tmp_path / "run"), str(tmp_path))
    assert not summary.fresh
    assert {variable.path for variable in model.variables} == set(tensors)
    trained = resume.restore_or_initialize(ClassifierModel(tiny_config(), 2), {}, str(tmp_path / "run"), str(tmp_path))
    fresh = ["bert/pooler/dense/bias", "bert/pooler/dense/kernel", "output_bias", "output_weights"]
    assert sorted(trained.fresh) == fresh
    assert "4 randomly initialised (bert/pooler/dense/kernel, bert/pooler/dense/bias, output_weights" in str(trained)


@pytest.mark.parametrize("fresh", ["", "bert/encoder/layer_0/.*"])
def test_a_frozen_variable_that_is_not_read_is_refused(tmp_path, fresh):
    model = ClassifierModel(tiny_config(), 2)
    tensors = {name: value for name, value in weights(model).items() if "pooler" not in name}
    convert_checkpoint.write_hf(str(tmp_path), tensors, tiny_config())
    model.encoder.freeze(1)
    if not fresh:
        resume.restore_or_initialize(model, {}, str(tmp_path / "run"), str(tmp_path))
        model.encoder.trainable = False
    with pytest.raises(InputError, match=rf"has no {fresh or 'bert/pooler/.*'}, which is frozen and would stay random"):
        resume.restore_or_initialize(model, {}, str(tmp_path / "run"), str(tmp_path), fresh)


def test_model_gardens_pre_training_checkpoints(tmp_path):
    # These checkpoints store the word embeddings under the path of the masked-LM head.
    weights = writers.arrays(heads=("masked LM",))
    model = writers.Garden(weights)
    del model.slots
    table = model.kept["bert/embeddings/word_embeddings"]
    head = tf.train.Checkpoint(embedding_table=table)
    prefix = tf.train.Checkpoint(masked_lm=head, encoder=model).save(str(tmp_path / "ckpt"))
    assert checkpoints.open_checkpoint(prefix).kind == "garden"
    np.testing.assert_equal(tensors_of(prefix), weights)


@pytest.mark.parametrize("version", ["functional", "layered"])
def test_model_garden_checkpoints(tmp_path, version):
    networks = pytest.importorskip("official.nlp.modeling.networks")
    config, prefix = writers.CONFIG, str(tmp_path / "bert_model.ckpt")
    common = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "max_sequence_length": config.max_position_embeddings,
        "type_vocab_size": config.type_vocab_size,
    }
    inputs = dict(zip(("input_word_ids", "input_mask", "input_type_ids"), writers.INPUTS, strict=True))
    if version == "functional":
        garden = networks.BertEncoder(**common, intermediate_size=config.intermediate_size, activation=tf.nn.gelu)
        expected = garden(inputs)
        tf.train.Checkpoint(model=garden).write(prefix)
    else:
        garden = networks.BertEncoderV2(**common, inner_dim=config.intermediate_size, inner_activation=tf.nn.gelu)
        expected = [garden(inputs)[name] for name in ("sequence_output", "pooled_output")]
        tf.train.Checkpoint(encoder=garden).write(prefix)
    encoder = BertEncoder(config)
    checkpoints.restore(checkpoints.named_variables(encoder.weights), prefix, may_be_new="")
    assert checkpoints.open_checkpoint(prefix).kind == "garden"
    output = encoder(*writers.INPUTS)
    assert_close(output.sequence_output, expected[0], 1e-4)
    assert_close(output.pooled_output, expected[1], 1e-4)


def test_missing_ambiguous_pickled_damaged_and_foreign_checkpoints_are_refused(tmp_path, write):
    tf.train.Checkpoint(v=tf.Variable([1.0], name="v")).write(str(tmp_path / "tf2"))
    write("pickled/pytorch_model.bin", "x")
    write("empty/README.md", "x")
    write("foreign/model.safetensors", safetensors.numpy.save({"oops.weight": np.zeros(2)}))
    write("damaged/model.safetensors", b"\xff" * 40)
    write("shards/model.safetensors.index.json", '{"weight_map": {"x": "gone.safetensors"}}')
    write("other/model.safetensors.index.json", '{"weight_map": {"x": "x.safetensors", "y": "x.safetensors"}}')
    write("other/x.safetensors", safetensors.numpy.save({"x": np.zeros(2)}))
    write("adapter/adapter_config.json", "{}")
    write("adapter/model.safetensors", safetensors.numpy.save({"x": np.zeros(2)}))
    for name in ("a", "b"):
        write_checkpoint(str(tmp_path / "two" / name), {"x": np.zeros(3)})
    for path, message in (
        ("none/bert_model.ckpt", "there is no checkpoint"),
        ("empty", "no model.safetensors"),
        ("pickled", "not a file of a model's weights, or damaged"),
        ("pickled/pytorch_model.bin", "not a file of a model's weights, or damaged"),
        ("two", "several checkpoints"),
        ("foreign", "oops.weight"),
        ("damaged", "damaged"),
        ("shards", "gone.safetensors"),
        ("other", "y is not in x.safetensors"),
        ("adapter", "has adapter_config.json"),
        ("tf2", "v is not a variable of BERT"),
    ):
        with pytest.raises(InputError, match=f"^--input: .*{message}") as raised:
            checkpoints.open_checkpoint(str(tmp_path / path), "--input")
        assert f"{tmp_path}/{path}" in str(raised.value)
    data = tmp_path / "two" / "a.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-4])
    message = f"^--input: {tmp_path}/two/a: the data has 20 bytes instead of 24"
    assert_refused(message, checkpoints.open_checkpoint, str(tmp_path / "two" / "a.index"), "--input")
