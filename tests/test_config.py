import json

import pytest

from bert_tf.config import RELEASED_SIZES, BertConfig
from tests.conftest import assert_refused, golden_path, tiny_config

RELEASED = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


@pytest.mark.golden
def test_golden_config_is_written_unchanged():
    path = golden_path("model/smallvar/bert_config.json")
    assert BertConfig.from_json_file(str(path)).to_json_string() == path.read_text()


def test_named_base_is_the_released_base():
    assert BertConfig.named("base").to_dict() == RELEASED
    assert BertConfig.named("tiny").num_attention_heads == 2
    assert BertConfig.named("medium") == BertConfig(30522, 512, 8, 8, 2048, type_vocab_size=2)
    assert set(RELEASED_SIZES) == {"tiny", "mini", "small", "medium", "base", "large"}
    assert_refused("tiny, mini", BertConfig.named, "huge")
    assert BertConfig.named("tiny", 7, hidden_size=256) == BertConfig(7, 256, 2, 2, 1024, type_vocab_size=2)
    assert BertConfig.named("tiny", hidden_size=256, intermediate_size=8).intermediate_size == 8


def test_keys_of_the_released_chinese_model_are_accepted():
    assert BertConfig.from_dict(RELEASED | {"directionality": "bidi", "pooler_fc_size": 768}).vocab_size == 30522


@pytest.mark.parametrize(
    ("hf", "ours"), [("gelu", "gelu_erf"), ("gelu_new", "gelu"), ("gelu_pytorch_tanh", "gelu"), ("relu", "relu")]
)
def test_activation_keeps_its_function_between_formats(hf, ours):
    values = RELEASED | {"model_type": "bert", "hidden_act": hf, "layer_norm_eps": 1e-12, "use_cache": True}
    config = BertConfig.from_dict(values)
    assert config.hidden_act == ours
    assert BertConfig.from_dict(config.to_hf_dict()) == config
    assert BertConfig.from_dict(json.loads(config.to_json_string())) == config


def test_other_settings_of_hugging_face_are_ignored_and_named(capsys):
    hf, others = RELEASED | {"model_type": "bert"}, {"_num_labels": 9, "language": "english", "x" * 10**6: 1}
    assert BertConfig.from_dict(hf | others) == BertConfig.from_dict(hf)
    said = capsys.readouterr().err
    assert "ignoring _num_labels, language, xx" in said
    assert len(said) < 500


def test_configs_of_2019_have_no_model_type():
    others = {"output_attentions": False, "torchscript": False, "use_bfloat16": False, "pruned_heads": {}}
    assert BertConfig.from_dict(RELEASED | others) == BertConfig.from_dict(RELEASED | {"model_type": "bert"})
    distilbert = {"activation": "gelu", "dim": 768, "n_layers": 6, "output_attentions": False, "vocab_size": 30522}
    assert_refused("no model_type and no hidden_size. This is not a BERT", BertConfig.from_dict, distilbert)
    del distilbert["output_attentions"]
    assert_refused("no model_type and no hidden_size. This is not a BERT", BertConfig.from_dict, distilbert)


@pytest.mark.parametrize(
    ("others", "act"),
    [
        (["pytorch_model.bin"], "gelu_erf"),
        (["model.safetensors"], "gelu_erf"),
        (["pytorch_model.bin", "bert_model.ckpt.index"], "gelu"),
        ([], "gelu"),
    ],
)
def test_gelu_in_configs_of_2018_is_the_one_of_the_weights(write, others, act):
    for name in others:
        write(name, "")
    for name in ("config.json", "bert_config.json"):
        assert BertConfig.from_json_file(write(name, json.dumps(RELEASED))).hidden_act == act


def test_other_layer_norm_epsilon_is_kept():
    config = BertConfig.from_dict(RELEASED | {"model_type": "bert", "layer_norm_eps": 1e-5})
    assert config.layer_norm_eps == 1e-5
    assert BertConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_sise": 4}, "hidden_sise"),
        ({"vocab_size": 0}, "vocab_size: .*>= 1"),
        ({"hidden_size": 770}, r"hidden_size: .*num_attention_heads .* Change one of them\.$"),
        ({"hidden_size": "768"}, "hidden_size: .*int"),
        ({"hidden_act": "swish"}, "hidden_act: .*'swish'"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob: .*< 1"),
        ({"hidden_dropout_prob": -0.1}, "hidden_dropout_prob: .*>= 0"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "position_embedding_type .*relative_key"),
        ({"model_type": "albert"}, "model_type .*albert"),
        ({"output_attentions": False, "pruned_heads": {"0": [1]}}, "pruned_heads is"),
        ({"model_type": "bert", "auto_map": {"AutoModel": "other.Bert"}}, "auto_map"),
        ({"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class .*BertJapanese"),
        ({"model_type": "bert", "is_causal": True}, "is_causal is True"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is .* Use one without it"),
        ({"model_type": "bert" * 10**6}, r"model_type is .{60}\. This is not"),
    ],
)
def test_bad_values_are_named(change, field):
    assert_refused(f"^a file(: |, at ).*{field}", BertConfig.from_dict, RELEASED | change, source="a file")


def test_missing_vocab_size_and_released_defaults():
    assert_refused("`vocab_size`", BertConfig.from_dict, {"hidden_size": 768})
    assert_refused(r"^vocab_size is 0", BertConfig, 0)
    assert_refused(r"^size tiny, at hidden_size ", BertConfig.named, "tiny", hidden_size="256")
    assert BertConfig(10).type_vocab_size == 16
    for act in ("", None, "Linear"):
        assert BertConfig.from_dict({"vocab_size": 10, "hidden_act": act}).hidden_act == "linear"


def test_a_missing_file_is_named():
    assert_refused("^--bert_config_file: .*missing", BertConfig.from_json_file, "missing.json")


def test_too_long_sequences_and_too_large_vocabularies_are_refused():
    config = BertConfig(10, max_position_embeddings=64)
    config.check_sequence_length(64)
    assert_refused("only 64", config.check_sequence_length, 65)
    config.check_vocabulary(10, "vocab.txt")
    assert_refused("11 entries", config.check_vocabulary, 11, "vocab.txt")


def test_pairs_need_two_segments():
    tiny_config(type_vocab_size=1).check_segments(are_pairs=False)
    tiny_config().check_segments(are_pairs=True)
    message = "pairs of texts, but the model has .* one segment only"
    assert_refused(message, tiny_config(type_vocab_size=1).check_segments, are_pairs=True)
