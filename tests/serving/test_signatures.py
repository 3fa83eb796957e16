"""Compares served models with the same steps in Python: tokenizer, packing or windows, model, decoding.

Operations run eagerly here, which is much faster than compiling the graphs; `test_export` runs SavedModels.
"""

import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.fill_mask import FillMask
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import ClassifierModel, SpanModel, TokenModel
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime.files import InputError
from bert_tf.serving import inference_encoder
from bert_tf.serving.inference_encoder import InferenceEncoder
from bert_tf.serving.lite_model import TextSettings
from bert_tf.serving.pretrained_encoder import ServedEncoder
from bert_tf.serving.signature_inputs import TextReader
from bert_tf.tasks import squad
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.graph_classifier import ServedChooser, ServedClassifier
from bert_tf.tasks.squad.graph_predictor import ServedPredictor
from bert_tf.tasks.tagging import graph_tagger, schemes
from bert_tf.tasks.tagging.graph_tagger import ServedTagger
from bert_tf.tasks.tagging.schemes import Sentence
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from tests.conftest import assert_close, tiny_config, with_large_head
from tests.finished_runs import write_model

pytestmark = pytest.mark.eager
LENGTH = 14
INVALID = b"a \xffb\xc3"


def tiny_model(build, tokenizer, *arguments, **options):
    """Returns a model with weights so large that predictions for different texts differ."""
    config = tiny_config(vocab_size=len(tokenizer.vocab), num_hidden_layers=1, initializer_range=0.7)
    tf.keras.utils.set_random_seed(5)
    model = build(config, *arguments, **options)
    return with_large_head(model) if hasattr(model, "head") else model


def inference(model):
    return InferenceEncoder(model.encoder, head=model.head)


def random_text(rng, words):
    pieces = ["a", "b", "cab", "é", "zz", "b,a", "(c)", "“d”", "\u200b", "Dad.", "x!?", "\U00010ffff"]
    return "".join(rng.choice(pieces) + rng.choice([" ", "  ", "\n", " \u00a0"]) for _ in range(words))


def predict(model, sequences, **per_example):
    """Returns the model's predictions for [(ids, segment_ids)], after padding."""
    features = FeatureSet.from_sequences(sequences, per_example)
    return model.predict(features.batch(np.arange(len(features)), 20))


@pytest.fixture(scope="module")
def pairs():
    rng = random.Random(1)
    texts = [(random_text(rng, rng.randint(0, 9)), random_text(rng, rng.randint(0, 9))) for _ in range(40)]
    return [*texts, ("", ""), ("a", ""), ("\0", "\0")]


@pytest.mark.parametrize(
    ("problem", "causal"),
    [("classification", False), ("multi_label", False), ("regression", False), ("classification", True)],
)
def test_classifiers(tokenizer, pairs, problem, causal):
    labels = None if problem == "regression" else ["x", "y", "ž"]
    model = tiny_model(ClassifierModel, tokenizer, len(labels or "1"), problem, causal=causal)
    is_pair = problem != "multi_label"
    names = ["q", "body"] if is_pair else ["q"]
    settings = TextSettings(inputs=names, problem=problem, labels=labels, max_seq_length=LENGTH)
    settings |= {} if is_pair else {"threshold": 0.3}
    served = ServedClassifier(inference(model), tokenizer, settings)
    sequences = [tokenizer.pack(a, b if is_pair else None, LENGTH) for a, b in pairs]
    label_ids = np.zeros([len(pairs), 3] if problem == "multi_label" else len(pairs), np.float32)
    expected = predict(model, sequences, label_ids=label_ids.astype(int) if labels and is_pair else label_ids)
    columns = list(map(tf.constant, zip(*pairs, strict=True)))[: len(names)]
    found = served.signatures()["serving_default"](*columns)
    lengths = [len(tokenizer.encode(a)) + (len(tokenizer.encode(b)) + 1 if is_pair and b else 0) for a, b in pairs]
    assert found["truncated"].numpy().any()
    assert not any(cut for cut, length in zip(found["truncated"], lengths, strict=True) if length <= LENGTH - 3)
    if problem == "regression":
        assert_close(found["score"], expected["score"], 1e-5)
        return
    assert_close(found["probabilities"], expected["probabilities"], 1e-5)
    assert found["label_names"].numpy().tolist() == [[b"x", b"y", "ž".encode()]] * len(pairs)
    if is_pair:
        best = [labels[i] for i in np.argmax(expected["logits"], axis=1)]
        assert [name.decode() for name in found["label"].numpy()] == best
    else:
        np.testing.assert_array_equal(found["chosen"], expected["probabilities"] >= 0.3)


def test_a_batch_may_be_empty_hold_invalid_bytes_or_be_refused(tokenizer):
    model = tiny_model(ClassifierModel, tokenizer, 3)
    settings = {"labels": ["x", "y", "z"], "inputs": ["text_a", "text_b"], "max_seq_length": LENGTH}
    served = ServedClassifier(inference(model), tokenizer, settings)
    texts = served.signatures()["serving_default"]
    empty = tf.zeros([0], tf.string)
    assert texts(text_a=empty, text_b=empty)["probabilities"].shape == [0, 3]
    several = tf.constant([INVALID, b"", b"a b", b"\xed\xa0\x80"])
    long = texts(text_a=tf.constant(["a " * 500_000, "a"]), text_b=tf.constant(["b", "c"]))
    assert long["truncated"].numpy().tolist() == [True, False]
    found = texts(text_a=several, text_b=tf.fill([4], "c"))["probabilities"].numpy()
    assert_close(found[0], found[2], 1e-6)
    assert_close(found[1], found[3], 1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="text_a and text_b must have the same number of elements"):
        texts(text_a=several, text_b=several[:2])

    ids = served.signatures()["token_ids"]
    row = tf.constant([[2, 5, 3]])
    assert ids(input_ids=row[:0], input_mask=row[:0], segment_ids=row[:0])["logits"].shape == [0, 3]
    for name, (input_ids, input_mask, segment_ids) in {
        "input_ids must be between 0 and 40": (row + 39, row, row * 0),
        "segment_ids must be between 0 and 1": (row, row, row),
        "input_ids must have between 1 and 32 columns": (row[:, :0],) * 3,
        "input_ids and input_mask must have the same shape": (row, row[:, :2], row),
    }.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=name):
            ids(input_ids=input_ids, input_mask=input_mask, segment_ids=segment_ids)


def test_choices(tokenizer, pairs):
    model = tiny_model(ClassifierModel, tokenizer, 1)
    served = ServedChooser(inference(model), TextReader(tokenizer, LENGTH))
    examples = [(a, [b, b[:3] + "c", a + "z"]) for a, b in pairs if b]
    sequences = [tokenizer.pack(a, b, LENGTH) for a, endings in examples for b in endings]
    logits = predict(model, sequences, label_ids=np.zeros(len(sequences), int))["logits"]
    expected = tf.nn.softmax(tf.reshape(logits, [-1, 3]))
    # A copy of the second example has one ending fewer, and the last example has no endings.
    endings = [endings for _, endings in examples]
    prompts = [a for a, _ in examples] + [examples[1][0], "a"]
    found = served.signatures()["serving_default"](
        prompt=tf.constant(prompts), endings=tf.constant([*endings, [*endings[1][:2], ""], [""] * 3])
    )
    assert_close(found["probabilities"][:-2], expected, 1e-5)
    np.testing.assert_array_equal(found["choice"][:-2], np.argmax(expected, axis=1))
    assert_close(found["probabilities"][-2], np.append(tf.nn.softmax(tf.reshape(logits, [-1, 3])[1, :2]), 0), 1e-5)
    assert found["choice"][-1] == -1
    assert not np.any(found["probabilities"][-1])


@pytest.mark.parametrize(("sizes", "threshold"), [((LENGTH, 3, 4, 6, 5), None), ((12, 99, 5, 1, 2), 0.3)])
def test_answers(tokenizer, sizes, threshold):
    is_version_2 = threshold is not None
    config = squad.SquadConfig(*sizes, version_2_with_negative=is_version_2, answer_text="offsets")
    model = tiny_model(SpanModel, tokenizer)
    served = ServedPredictor(inference(model), tokenizer, config, threshold or 0.0)
    rng = random.Random(3)
    texts = [(random_text(rng, rng.randint(0, 5)), random_text(rng, rng.randint(1, 30))) for _ in range(40)]
    texts += [("a", ""), ("", "a"), ("a", " \n\u200b")]
    examples = [squad.make_example(str(i), *text) for i, text in enumerate(texts)]
    windows = squad.featurize(examples, tokenizer, config, is_training=False)
    outputs = model.predict(windows.batch(np.arange(len(windows)), 20))
    logits = outputs["start_logits"].numpy(), outputs["end_logits"].numpy()
    null = {"null_score_diff_threshold": threshold or 0.0}
    predictions = squad.decode(examples, windows, *logits, config=config, **null)
    expected = ["" if answer == "empty" else answer for answer in predictions.answers.values()]
    inputs = {"question": tf.constant([q for q, _ in texts]), "context": tf.constant([c for _, c in texts])}
    found = {name: values.numpy() for name, values in served.signatures()["serving_default"](**inputs).items()}
    answers = [answer.decode() for answer in found["answer"]]
    assert answers == expected
    assert "" in answers
    assert len(set(answers)) > 6
    for (_, context), answer, start, end in zip(texts, answers, found["start"], found["end"], strict=True):
        assert (context[start:end] if start >= 0 else "") == answer
        assert (start == -1) == (end == -1) == (answer == "")
    for i, best in enumerate(predictions.n_best.values()):
        listed = [entry for entry in best if entry["text"] not in ("", "empty")]
        count = found["num_answers"][i]
        assert [text.decode() for text in found["answers"][i, :count]] == [entry["text"] for entry in listed]
        expected_probabilities = [entry["probability"] for entry in listed]
        assert_close(found["answer_probabilities"][i, :count], expected_probabilities, 1e-4)
        if is_version_2:
            (null,) = [entry for entry in best if not entry["text"]]
            assert found["null_probability"][i] == pytest.approx(null["probability"], abs=1e-4)
            assert found["null_threshold"][i] == np.float32(threshold)


def test_answers_need_room_for_text_beside_the_question():
    with pytest.raises(InputError, match=r"^--max_query_length=64: --max_seq_length=64"):
        ServedPredictor(None, None, squad.SquadConfig(max_seq_length=64, max_query_length=64))


def test_answers_of_empty_and_invalid_inputs(tokenizer):
    model = tiny_model(SpanModel, tokenizer)
    served = ServedPredictor(inference(model), tokenizer, squad.SquadConfig(LENGTH, 3, 4))
    texts = served.signatures()["serving_default"]
    empty = tf.zeros([0], tf.string)
    assert texts(question=empty, context=empty)["answer"].shape == [0]
    found = texts(question=tf.constant([b"a", b"a"]), context=tf.constant([b"b \xff\xc3a \xe4\xb8c", b"b a c"]))
    assert found["answer"][0] == found["answer"][1] != b""
    assert found["start"][0] == found["start"][1]
    assert texts(question=tf.constant([""]), context=tf.constant(["\0 "]))["start"] == [-1]
    row = tf.constant([[2, 5, 3, 6, 3]])
    found = served.signatures()["token_ids"](input_ids=row, input_mask=row - row, segment_ids=row - row)
    assert found["start_logits"].shape == [1, 5]


TYPES = ["LOC", "PER"]


@pytest.mark.parametrize(
    ("scheme", "labels", "has_entities"),
    [("iob2", TYPES, True), ("plain", ["LOC", "O", "PER"], True), ("plain", ["DET", "NOUN", "VERB"], False)],
)
def test_tags(tokenizer, scheme, labels, has_entities):
    task = TaggingTask(DataConfig("ner", tag_scheme=scheme), {}, labels)
    model = tiny_model(TokenModel, tokenizer, len(task.tags))
    served = ServedTagger(inference(model), tokenizer, task.tags, task.is_plain, LENGTH)
    rng = random.Random(2)
    texts = ["", " ", "“Ab” (b,a)... c!d d.", "\u200b a"] + [random_text(rng, rng.randint(1, 40)) for _ in range(20)]
    found = {k: v.numpy() for k, v in served.signatures()["serving_default"](text_a=tf.constant(texts)).items()}

    def row(name, count, number):
        return [part.decode() if isinstance(part, bytes) else part for part in found[name][number, :count]]

    tokens = [row("tokens", found["num_tokens"][i], i) for i in range(len(texts))]
    assert tokens[:3] == [[], [], ["“", "Ab", "”", "(", "b,a", ")", ".", ".", ".", "c!d", "d", "."]]
    fields = {"path": "", "tags": None, "lines": (), "document": None, "problem": "", "line": 0}
    sentences = [Sentence(words=tuple(words), **fields) for words in tokens if words]
    features = task.featurize(sentences, tokenizer, LENGTH)
    batch = features.batch(np.arange(len(features)), max(20, features.max_length))
    tag_ids = features.at_words(model.predict(batch)["tags"].numpy())
    probabilities = features.at_words(tf.nn.softmax(model.logits(batch)).numpy()).max(axis=-1)
    flat_scores = np.concatenate([row("scores", len(words), i) for i, words in enumerate(tokens)])
    assert_close(flat_scores, probabilities, 1e-4)
    expected = features.by_sentence([task.tags[i] for i in tag_ids])
    tags = [row("tags", len(words), i) for i, words in enumerate(tokens)]
    assert [row for row in tags if row] == expected
    for i, text in enumerate(texts):
        spans = list(zip(found["token_starts"][i], found["token_ends"][i], strict=True))
        assert [text[start:end] for start, end in spans[: len(tokens[i])]] == tokens[i]
        count = found["num_entities"][i]
        entities = schemes.entities_of(tags[i], task.is_plain) if has_entities else []
        assert row("entity_types", count, i) == [kind for kind, _, _ in entities]
        lowest = [found["scores"][i, first : last + 1].min() for _, first, last in entities]
        assert_close(row("entity_scores", count, i), lowest, 0)
        places = list(zip(found["entity_starts"][i], found["entity_ends"][i], strict=True))[:count]
        assert places == [(spans[first][0], spans[last][1]) for _, first, last in entities]
        assert row("entities", count, i) == [text[start:end] for start, end in places]
    assert (sum(found["num_entities"]) > 10) == has_entities

    width = max(map(len, tokens))
    padded = tf.constant([[*words, *[""] * (width - len(words))] for words in tokens])
    by_words = served.signatures()["words"](words=padded)
    np.testing.assert_array_equal(by_words["tags"], found["tags"])
    np.testing.assert_array_equal(by_words["entity_types"], found["entity_types"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="only after the last word"):
        served.signatures()["words"](words=tf.constant([["", "a"]]))


def test_texts_are_split_into_words_in_linear_time():
    split = tf.function(graph_tagger._split_words, input_signature=[tf.TensorSpec([None], tf.string)])
    # `Substr` would copy the complete text for each word.
    assert "Substr" not in {op.type for op in split.get_concrete_function().graph.get_operations()}
    words, starts, ends = graph_tagger._split_words(tf.constant(["ä (b)", "", "c d"]))
    assert words.to_list() == [["ä".encode(), b"(", b"b", b")"], [], [b"c", b"d"]]
    assert (starts.to_list(), ends.to_list()) == ([[0, 3, 4, 5], [], [0, 2]], [[2, 4, 5, 6], [], [1, 3]])


def test_large_batches_are_computed_in_parts(tokenizer, monkeypatch):
    classifier = tiny_model(ClassifierModel, tokenizer, 3)
    settings = {"labels": ["x", "y", "z"], "inputs": ["text_a"], "max_seq_length": LENGTH}
    model = tiny_model(PretrainingModel, tokenizer)
    inputs = tf.constant(["a [MASK] b", "c", "", "[MASK] a b", "d e", "b " * 20, "[MASK]"])
    classify = ServedClassifier(inference(classifier), tokenizer, settings).signatures()
    encode = ServedEncoder(InferenceEncoder(model.encoder, masked_lm=model.masked_lm), tokenizer, LENGTH).signatures()
    functions = [
        classify["serving_default"],
        *(encode[name] for name in ("serving_default", "all_layers", "fill_mask")),
    ]
    sizes = []
    embed = InferenceEncoder._embed
    monkeypatch.setattr(
        InferenceEncoder, "_embed", lambda self, batch: sizes.append(len(batch.lengths)) or embed(self, batch)
    )
    for function in functions:
        monkeypatch.setattr(inference_encoder, "SEQUENCES_PER_PART", 32)
        whole = function(text_a=inputs)
        monkeypatch.setattr(inference_encoder, "SEQUENCES_PER_PART", 3)
        sizes.clear()
        for output, values in function(text_a=inputs).items():
            if values.dtype == tf.float32:
                assert_close(values, whole[output], 1e-5, output)
            else:
                np.testing.assert_array_equal(values, whole[output], output)
        assert sizes == [3, 3, 1]


def test_a_pre_trained_model(tokenizer, tmp_path):
    model = tiny_model(PretrainingModel, tokenizer)
    served = ServedEncoder(InferenceEncoder(model.encoder, masked_lm=model.masked_lm), tokenizer, LENGTH).signatures()
    texts = ["a [MASK] b", "", "[MASK] Dad [MASK]", "c [SEP]", "[MASK] " + "a " * 20]
    found = served["fill_mask"](text_a=tf.constant(texts))
    assert found["num_masks"].numpy().tolist() == [1, 0, 2, 0, 1]
    assert found["truncated"].numpy().tolist() == [False] * 4 + [True]
    write_model(tmp_path, model)
    filler = FillMask(str(tmp_path), do_lower_case=True)
    for i in (0, 2):
        for j, guesses in enumerate(filler(texts[i], 5)):
            assert [name.decode() for name in found["guesses"][i, j].numpy()] == [guess.token for guess in guesses]
            assert_close(found["probabilities"][i, j], [guess.probability for guess in guesses], 1e-5)

    scored = served["sentence_scores"](text_a=tf.constant(texts))
    scores = filler.score([*texts[:4], "[MASK] " + "a " * 9])
    assert scored["num_tokens"].numpy().tolist() == [score.num_tokens for score in scores] == [5, 0, 9, 4, 12]
    assert scored["truncated"].numpy().tolist() == [False] * 4 + [True]
    assert_close(scored["pseudo_log_likelihood"], [score.pseudo_log_likelihood for score in scores], 1e-4)

    text_a, text_b = tf.constant(["a cab", "b"]), tf.constant(["c", ""])
    sequences = [tokenizer.pack(a, b, LENGTH) for a, b in (("a cab", "c"), ("b", ""))]
    batch = FeatureSet.from_sequences(sequences).batch(np.arange(2), 8)
    output = model.encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
    by_pairs = served["pairs"](text_a=text_a, text_b=text_b)
    mask = batch["input_mask"][..., None]
    for found in (by_pairs, served["token_ids"](**{name: tf.constant(values) for name, values in batch.items()})):
        assert_close(found["sequence_output"], output.sequence_output * mask, 2e-5)
        assert_close(found["pooled_output"], output.pooled_output, 2e-5)
    np.testing.assert_array_equal(by_pairs["input_ids"], batch["input_ids"])
    assert by_pairs["tokens"][1, :3].numpy().tolist() == [b"[CLS]", b"b", b"[SEP]"]
    layers = served["all_layers"](text_a=text_a)["all_encoder_layers"]
    assert_close(layers[:, -1], served["serving_default"](text_a=text_a)["sequence_output"], 1e-6)
