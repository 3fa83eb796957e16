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
from bert_tf.graphs import encoder, tags
from bert_tf.graphs.answers import ServedPredictor
from bert_tf.graphs.classifier import ServedChooser, ServedClassifier
from bert_tf.graphs.encoder import InferenceEncoder
from bert_tf.graphs.pretrained import ServedEncoder
from bert_tf.graphs.tags import ServedTagger
from bert_tf.graphs.text_reader import GraphTextReader
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime.files import InputError
from bert_tf.tasks import squad
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.tagging import schemes
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


def test_an_example_without_endings_has_no_choice(tokenizer):
    model = tiny_model(ClassifierModel, tokenizer, 1)
    served = ServedChooser(inference(model), GraphTextReader(tokenizer, LENGTH)).signatures()["serving_default"]
    found = served(prompt=tf.constant(["a", "a"]), endings=tf.constant([["b", "c"], ["", ""]]))
    assert found["choice"].numpy().tolist() == [np.argmax(found["probabilities"][0]), -1]
    assert not np.any(found["probabilities"][1])


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
    tags = [row("tags", len(words), i) for i, words in enumerate(tokens)]
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
    split = tf.function(tags._split_words, input_signature=[tf.TensorSpec([None], tf.string)])
    # `Substr` would copy the complete text for each word.
    assert "Substr" not in {op.type for op in split.get_concrete_function().graph.get_operations()}
    words, starts, ends = tags._split_words(tf.constant(["ä (b)", "", "c d"]))
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
        monkeypatch.setattr(encoder, "SEQUENCES_PER_PART", 32)
        whole = function(text_a=inputs)
        monkeypatch.setattr(encoder, "SEQUENCES_PER_PART", 3)
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
