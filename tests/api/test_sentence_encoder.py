"""Tests text vectors of sentence-transformers models: in Python, from the program, and from an export."""

import importlib
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import checkpoints, convert_checkpoint, export, sentence_vectors
from bert_tf.config import BertConfig
from bert_tf.graphs import exportable
from bert_tf.graphs.encoder import InferenceEncoder
from bert_tf.model.heads import MaskedLMHead
from bert_tf.runtime.errors import InputError
from bert_tf.sentence_vectors import VectorConfig
from bert_tf.serving.export_config import ExportConfig
from tests import programs
from tests.conftest import assert_close, assert_refused, tensors_of

TEXTS = ["a fine day", "poor words", "day"]
pytestmark = [pytest.mark.eager, pytest.mark.plain]
PROMPTS_FILE, BERT_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"
UNKNOWN = "the setting '{}' is .* may change the vectors"
BOTH = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}


@pytest.fixture(scope="module")
def encoder(pretrained):
    return bert_tf.SentenceEncoder.from_pretrained(pretrained)


def modules(pooling):
    """Returns the content of modules.json, with the directory of the pooling module."""
    kinds = {"Transformer": "", "Pooling": pooling, "Normalize": "2_Normalize"}
    return [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds.items()]


@pytest.fixture
def directory(pretrained, tmp_path):
    """Returns a sentence-transformers directory of the tiny model: [CLS] pooling, normalised, at most 4 tokens."""
    directory = tmp_path / "sentences"
    shutil.copytree(pretrained, directory)
    write(directory / "modules.json", modules("1_Pooling"))
    write(directory / BERT_FILE, {"max_seq_length": 4, "do_lower_case": False})
    (directory / "1_Pooling").mkdir()
    write(directory / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    return directory


def write(path, values):
    path.write_text(json.dumps(values))


def test_a_directory_determines_the_vectors_everywhere(directory, pretrained, tmp_path, capsys):
    encoder = bert_tf.SentenceEncoder.from_pretrained(directory)
    assert (encoder.config, encoder.max_seq_length) == (VectorConfig("cls", True), 4)
    vectors = encoder.encode(TEXTS)
    assert "1 of 3" in capsys.readouterr().err
    plain = bert_tf.SentenceEncoder.from_pretrained(pretrained, max_seq_length=4)
    assert_close(vectors, plain.encode(TEXTS, pooling="cls", normalize=True), 1e-6)
    assert_close(encoder.encode(TEXTS, pooling="max", normalize=False), plain.encode(TEXTS, pooling="max"), 1e-6)

    for source, target, target_format in ((directory, "hf", "hf"), (tmp_path / "hf", "tf1", "tf1")):
        convert_checkpoint.convert(source, tmp_path / target, target_format)
        converted = bert_tf.SentenceEncoder.from_pretrained(tmp_path / target)
        assert converted.max_seq_length == 4
        assert_close(converted.encode(TEXTS), vectors, 1e-6)

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    flags = [f"--input_file={tmp_path}/texts.txt", f"--init_checkpoint={directory}", "--max_seq_length=4"]
    programs.run("extract_features.py", *flags, f"--output_file={tmp_path}/vectors.jsonl", "--pooling=auto")
    lines = [json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text().splitlines()]
    assert [line["linex_index"] for line in lines] == [0, 1, 2]
    assert_close(np.array([line["vector"] for line in lines]), vectors, 1e-5)

    masked_lm = MaskedLMHead(BertConfig.from_json_file(directory / "bert_config.json"))
    weights = checkpoints.named_variables(masked_lm.weights) | tensors_of(directory / "bert_model.ckpt")
    checkpoints.write_checkpoint(str(directory / "bert_model.ckpt"), weights)
    export.export_run(directory, tmp_path / "exported")
    served = export.load(tmp_path / "exported", "sentence_vectors")
    assert_close(served(text_a=TEXTS)["vectors"], vectors, 1e-5)
    encoders = ["all_layers", "pairs", "sentence_vectors", "serving_default", "token_ids"]
    assert served.signatures == sorted([*encoders, "fill_mask", "sentence_scores"])


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "pooled"])
def test_models_of_ids_contain_pooling_and_normalisation(directory, tmp_path, pooling):
    write(directory / "1_Pooling" / "config.json", {"pooling_mode": pooling})
    ids = bert_tf.load_tokenizer(directory)(TEXTS, max_length=4)
    vectors = bert_tf.SentenceEncoder.from_pretrained(directory).encode(TEXTS)
    served = export.build(str(directory), ExportConfig())
    assert_close(served.served.signatures()["token_ids"](*ids.values())["vectors"], vectors, 1e-5)
    assert_close(served.plain(*ids.values())["vectors"], vectors, 1e-5)
    exportable.write_lite(served.plain, str(tmp_path / "ids.tflite"))
    run = tf.lite.Interpreter(str(tmp_path / "ids.tflite")).get_signature_runner()
    assert_close(run(**ids)["vectors"], vectors, 1e-5)
    if importlib.util.find_spec("tf2onnx"):
        exportable.write_onnx(served.plain, str(tmp_path), ExportConfig(onnx=True))
        session = importlib.import_module("onnxruntime").InferenceSession(str(tmp_path / "ids.onnx"))
        inputs = {given.name: ids[given.name] for given in session.get_inputs()}
        found = dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs), strict=True))
        assert_close(found["vectors"], vectors, 1e-5)


@pytest.mark.graph
def test_batches_of_any_shape_share_one_trace(pretrained, monkeypatch):
    encoder, traced, layers = bert_tf.SentenceEncoder.from_pretrained(pretrained), [], InferenceEncoder.layers
    monkeypatch.setattr(InferenceEncoder, "layers", lambda self, batch: traced.append(1) or layers(self, batch))
    one_by_one = [encoder.encode([text])[0] for text in TEXTS]
    for batch_size in (1, 16):
        assert_close(encoder.encode(TEXTS, batch_size=batch_size), np.stack(one_by_one), 1e-6)
    assert len(traced) == 1


def test_one_text_no_texts_similarities_and_layers(encoder):
    vectors = encoder.encode(TEXTS)
    assert encoder.encode(TEXTS[0]).tolist() == vectors[0].tolist()
    assert encoder.encode([]).shape == (0, vectors.shape[1])
    cosine = vectors[1] @ vectors[0] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert_close(encoder.similarity(vectors[:2], vectors[:1]), [[1.0], [cosine]], 1e-6)
    both = encoder.encode(TEXTS, layers=[0, -1])
    assert_close(both, np.concatenate([vectors, vectors], axis=1), 1e-6)  # the model has one layer
    for layers in (0, -1, np.array([0])):
        assert_close(encoder.encode(TEXTS, layers=layers), vectors, 1e-6)
        assert_close(encoder.encode_words(TEXTS, layers=layers)[2][1], encoder.encode_words(TEXTS)[2][1], 1e-6)
    assert_refused("layer 1", encoder.encode, TEXTS, layers=[1])
    assert_refused("only the last layer", encoder.encode, TEXTS, pooling="pooled", layers=[0, 0])


def test_the_length_is_checked_when_it_is_set(pretrained):
    encoder = bert_tf.SentenceEncoder.from_pretrained(pretrained, max_seq_length=4)
    for value, message in (("64", "max_seq_length is '64'"), (0, "max_seq_length is 0"), (5000, "only .* positions")):
        assert_refused(message, bert_tf.SentenceEncoder.from_pretrained, pretrained, max_seq_length=value)
        assert_refused(message, setattr, encoder, "max_seq_length", value)
    encoder.max_seq_length = 8
    assert encoder.encode(["a day " * 9]).shape == encoder.encode(TEXTS[:1]).shape


def test_bfloat16_is_close_to_float32(pretrained, encoder):
    low = bert_tf.SentenceEncoder.from_pretrained(pretrained, dtype="bfloat16")
    assert low._encoder.dtype == tf.bfloat16
    assert_close(low.encode(TEXTS), encoder.encode(TEXTS), 0.05)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("modules.json", [{"type": f"x.{kind}"} for kind in ("Transformer", "Pooling", "Dense")], "modules.*Dense"),
        ("modules.json", [{"type": f"x.{kind}"} for kind in ("Transformer", "Pooling")], "modules are 'x.Transformer'"),
        ("modules.json", [], "modules.json: Expected `array` of length >= 1"),
        ("modules.json", modules("/tmp"), "modules.json: '/tmp' is outside of the directory"),
        ("modules.json", modules("a/../../b"), "'a/../../b' is outside of the directory"),
        ("modules.json", modules(["1_Pooling"]), r"modules.json, at \[1\].path: Expected `str`"),
        (PROMPTS_FILE, {"default_prompt_name": ["query"]}, "default_prompt_name"),
        (PROMPTS_FILE, {"default_prompt_name": "query"}, "prompts has no 'query'"),
        (PROMPTS_FILE, {"default_prompt_name": ""}, "prompts has no ''"),
        (BERT_FILE, {"max_seq_length": 0}, "max_seq_length is 0. Expected `int` >= 1"),
        (BERT_FILE, {"max_seq_length": "8"}, "max_seq_length is '8'"),
        (BERT_FILE, {"max_seq_length": [8]}, "max_seq_length"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "config.json.*weightedmean"),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "config.json.*lasttoken"),
        ("1_Pooling/config.json", BOTH, "config.json.*pooling_mode_max_tokens"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, r"the pooling is \['cls', 'mean'\]"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "mean", "weights": [1]},
            f"config.json: {UNKNOWN.format('weights')}",
        ),
        (PROMPTS_FILE, {"backend_dtype": "int8"}, f"{PROMPTS_FILE}: {UNKNOWN.format('backend_dtype')}"),
        (BERT_FILE, {"transformer_task": "fill-mask"}, f"{BERT_FILE}: {UNKNOWN.format('transformer_task')}"),
        (BERT_FILE, {"query_expansion": {"length": 3}}, f"{BERT_FILE}: {UNKNOWN.format('query_expansion')}"),
    ],
)
def test_other_vectors_and_unknown_settings_are_refused(directory, file, values, message):
    write(directory / file, values)
    assert_refused(f"(?s){message}", bert_tf.SentenceEncoder.from_pretrained, directory)


PROMPTS = {"prompts": {"query": "here ", "document": ""}, "default_prompt_name": "query"}


def test_prompts_are_applied_by_default_by_name_and_everywhere(directory, tmp_path):
    plain = bert_tf.SentenceEncoder.from_pretrained(directory).encode
    write(directory / PROMPTS_FILE, PROMPTS | {"truncate_dim": 5, "__version__": {}})
    write(directory / BERT_FILE, {"max_seq_length": 8})
    encoder = bert_tf.SentenceEncoder.from_pretrained(directory)
    after = [f"here {text}" for text in TEXTS]
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (3, 5)
    assert_close(vectors, encoder.encode(after, prompt=""), 1e-6)
    assert_close(encoder.encode(TEXTS[2:], prompt="a "), plain(["a day"])[:, :5], 1e-6)
    assert_close(encoder.encode(TEXTS[2:], prompt_name="document"), plain(["day"])[:, :5], 1e-6)
    assert_close(encoder.encode([("day", "words")], prompt="a "), encoder.encode([("a day", "words")], prompt=""), 1e-6)
    renormalised = encoder.encode(TEXTS, normalize=True)
    assert_close(renormalised, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    with pytest.raises(InputError, match=r"there is no prompt 'passage'. Use one of ..query., .document"):
        encoder.encode(TEXTS, prompt_name="passage")

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    flags = [f"--input_file={tmp_path}/texts.txt", f"--init_checkpoint={directory}", "--max_seq_length=8"]
    programs.run("extract_features.py", *flags, f"--output_file={tmp_path}/vectors.jsonl", "--pooling=auto")
    lines = [json.loads(line)["vector"] for line in (tmp_path / "vectors.jsonl").read_text().splitlines()]
    assert_close(np.array(lines), vectors, 1e-5)
    served = export.build(str(directory), ExportConfig()).served.signatures()["sentence_vectors"]
    assert_close(served(text_a=tf.constant(TEXTS))["vectors"], vectors, 1e-5)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_pooling_may_leave_out_the_prompt(directory, pooling):
    write(directory / PROMPTS_FILE, PROMPTS)
    write(directory / BERT_FILE, {"max_seq_length": 8})
    write(directory / "1_Pooling" / "config.json", {"pooling_mode": pooling, "include_prompt": False})
    encoder = bert_tf.SentenceEncoder.from_pretrained(directory)
    output = encoder.bert.encoder(*encoder.bert.tokenizer(["here a fine day"], return_tensors="tf").values())
    states = output.sequence_output[0, 2:].numpy()  # after [CLS] and the prompt
    expected = {"mean": states.mean(axis=0), "max": states.max(axis=0), "cls": states[0]}[pooling]
    assert_close(encoder.encode(["a fine day"])[0], expected / np.linalg.norm(expected), 1e-5)
    long = "here " * 9  # only [SEP] is pooled, as in sentence-transformers
    output = encoder.bert.encoder(*encoder.bert.tokenizer([long], max_length=8, return_tensors="tf").values())
    expected = output.sequence_output[0, 7].numpy()
    assert_close(encoder.encode("day", prompt=long), expected / np.linalg.norm(expected), 1e-5)
    assert_close(encoder.config.vectors(tf.zeros([1, 8, 16]), tf.ones([1, 8])), np.zeros([1, 16]), 0)
    for number in range(40):
        encoder.encode("day", prompt="here" + " a" * (number % 6) + " " * number)
    assert encoder._functions.cache_info().currsize <= 7  # not one graph for each prompt


def test_texts_may_be_converted_to_lower_case_before_a_cased_tokenizer(directory):
    texts = ["A Fine DAY", "a fine day"]
    write(directory / "tokenizer_config.json", {"do_lower_case": False, "model_max_length": 6})
    assert np.abs(np.subtract(*bert_tf.SentenceEncoder.from_pretrained(directory).encode(texts))).max() > 1e-4
    write(directory / BERT_FILE, {"do_lower_case": True})
    encoder = bert_tf.SentenceEncoder.from_pretrained(directory)
    assert_close(*encoder.encode(texts), 1e-6)
    assert encoder.max_seq_length == 6
    assert encoder.bert.tokenizer.tokenize("\u00c4") == encoder.bert.tokenizer.tokenize("\u00e4")
    assert not encoder.bert.tokenizer.rules["strip_accents"]


def test_the_files_of_sentence_transformers_6_are_read(directory):
    write(
        directory / BERT_FILE,
        {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        },
    )
    unset = {"default_prompt_name": None, "prompts": {"document": "", "query": ""}, "similarity_fn_name": "cosine"}
    write(directory / PROMPTS_FILE, unset | {"model_type": "SentenceTransformer"})
    old = {"pooling_mode_mean_tokens": True}  # not used
    write(
        directory / "1_Pooling" / "config.json",
        {"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": True} | old,
    )
    encoder = bert_tf.SentenceEncoder.from_pretrained(directory)
    assert encoder.config == VectorConfig("cls", True, prompts=(("document", ""), ("query", "")))


def test_older_files_of_sentence_transformers_and_other_similarities(directory, capsys):
    write(directory / "tokenizer_config.json", {"max_len": 5})
    (directory / BERT_FILE).rename(directory / "sentence_roberta_config.json")
    message = "sentence_roberta_config.json: rename this file to sentence_bert_config.json"
    assert_refused(message, bert_tf.SentenceEncoder.from_pretrained, directory)
    (directory / "sentence_roberta_config.json").unlink()
    write(directory / PROMPTS_FILE, {"similarity_fn_name": "dot"})
    assert bert_tf.SentenceEncoder.from_pretrained(directory).max_seq_length == 5
    assert "similarity_fn_name is 'dot', but similarities are cosines here" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", [(1024, 4096), (3, 7), (1, 1)])
def test_a_search_finds_what_a_comparison_of_all_vectors_finds(sizes, monkeypatch, tmp_path):
    monkeypatch.setattr(sentence_vectors, "_SEARCHED_QUERIES", sizes[0])
    monkeypatch.setattr(sentence_vectors, "_SEARCHED_VECTORS", sizes[1])
    rng = np.random.default_rng(1)
    queries, corpus = rng.integers(-2, 3, [5, 4]).astype(np.float32), rng.integers(-1, 2, [40, 4]).astype(np.float16)
    stored = np.memmap(tmp_path / "vectors", np.float16, "w+", shape=corpus.shape)
    stored[:] = corpus
    cosines = np.array(
        [[q @ v / (max(np.linalg.norm(q) * np.linalg.norm(v), 1e-12)) for v in corpus.astype(float)] for q in queries]
    )
    for k in (1, 6, 99):
        indices, scores = sentence_vectors.search(queries, stored, k)
        assert indices.shape == scores.shape == (5, min(k, 40)) and scores.dtype == np.float32
        assert_close(scores, -np.sort(-cosines, axis=1)[:, :k], 1e-6)
        assert_close(np.take_along_axis(cosines, indices, axis=1), scores, 1e-6)
        for row, values in zip(indices, scores, strict=True):
            assert all(a < b for a, b, same in zip(row, row[1:], np.diff(values) == 0, strict=False) if same)
    large = np.full([2, 4], 6e4, np.float16)  # the norm is larger than any float16
    assert_close(sentence_vectors.search(large, stored, 1)[1], sentence_vectors.search(large / 6e4, stored, 1)[1], 1e-3)
    for value in (np.nan, np.inf):
        stored[33] = value
        assert_refused("corpus: vector 33 contains NaN or infinity", sentence_vectors.search, queries, stored, 1)
        assert_refused("queries: vector 33 contains", sentence_vectors.search, stored, queries, 1)
    same = np.concatenate([np.eye(4)] * 3)
    assert sentence_vectors.search(np.eye(4), same, 4)[0].tolist()[1] == [1, 5, 9, 0]


def test_texts_are_searched(encoder):
    vectors = encoder.encode(TEXTS)
    indices, scores = encoder.search(["day", "a fine day"], TEXTS, k=2)
    assert indices[:, 0].tolist() == [2, 0]
    assert_close(scores, -np.sort(-encoder.similarity(vectors[[2, 0]], vectors), axis=1)[:, :2], 1e-6)
    assert encoder.search("day", vectors, k=1)[0].tolist() == [[2]]
    for queries in (encoder.encode("day"), vectors[2].tolist(), vectors[2:].tolist(), pd.DataFrame(vectors[2:])):
        assert encoder.search(queries, pd.DataFrame(vectors), k=1)[0].tolist() == [[2]]
    assert_close(encoder.similarity(TEXTS[:1], vectors.tolist()), encoder.similarity(vectors[:1], vectors), 1e-6)
    assert encoder.search([], vectors)[0].shape == (0, 3)
    assert_refused("k is 0", encoder.search, ["day"], vectors, k=0)
    assert_refused(r"^corpus: shape \(3, 5\), but the queries have \(1, 12\)", encoder.search, ["day"], vectors[:, :5])
