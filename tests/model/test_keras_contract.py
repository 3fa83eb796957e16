"""Tests Keras's contract for layers: configs, saving, symbolic calls, dtypes, training, freezing, masks, strategies."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.testing import TestCase

from bert_tf import checkpoints
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.encoder import BertEncoder, EncoderOutput
from bert_tf.model.base_layers import Dense, LayerNorm
from bert_tf.model.heads import ClassificationHead, LinearHead, MaskedLMHead, SpanHead
from bert_tf.model.layers import Embeddings, TransformerBlock
from tests.conftest import assert_close, assert_refused, restored, tiny_config

pytestmark = pytest.mark.plain

CONFIG = tiny_config()
SHALLOW = tiny_config(num_hidden_layers=1)  # for tests that spend most of their time tracing training steps
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 41, (6, 8)).astype(np.int32)
MASK = np.array([[1] * 6 + [0] * 2] * 6, np.int32)
STATES = RNG.normal(size=(6, 8, 12)).astype(np.float32)
POSITIONS = np.array([[0, 3, 5]] * 6, np.int32)
LABELS = (IDS[:, 0] % 2).astype(np.int32)
INPUTS = {"input_ids": IDS, "input_mask": MASK}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# Each public layer: class, arguments, inputs by their names in `call`, and, in a model of one block, shapes of the
# outputs and number of variables.
_SEQUENCES = (6, 8, 12)
_ENCODED = EncoderOutput(_SEQUENCES, (_SEQUENCES,), _SEQUENCES, (6, 12), ((6, 3, 8, 8),), (6, 8))
_CAUSAL = {"use_one_hot_embeddings": True, "gradient_checkpointing": True, "causal": True, "seed": 3}
_BIAS = np.zeros((6, 1, 1, 8), np.float32)
_PREDICTED = {"sequence_output": STATES, "positions": POSITIONS, "embedding_table": np.zeros((41, 12), np.float32)}
LAYERS = {
    "encoder": (BertEncoder, {}, {"input_ids": IDS}, _ENCODED, 23),
    "causal_encoder": (BertEncoder, _CAUSAL, {"input_ids": IDS}, _ENCODED._replace(attention_probs=()), 23),
    "block": (TransformerBlock, {}, {"x": STATES, "attention_bias": _BIAS}, (_SEQUENCES, (6, 3, 8, 8)), 16),
    "embeddings": (Embeddings, {}, {"input_ids": IDS, "segment_ids": MASK}, (48, 12), 5),
    "dense": (Dense, {"units": 5, "activation": "gelu"}, {"x": STATES}, (6, 8, 5), 2),
    "layer_norm": (LayerNorm, {}, {"x": STATES}, _SEQUENCES, 2),
    "classification": (ClassificationHead, {"outputs": 3, "seed": 2}, {"x": STATES}, (6, 8, 3), 2),
    "linear": (LinearHead, {"outputs": 3, "scope": "cls/seq_relationship"}, {"x": STATES[:, 0]}, (6, 3), 2),
    "span": (SpanHead, {}, {"x": STATES}, ((6, 8), (6, 8)), 2),
    "masked_lm": (MaskedLMHead, {}, _PREDICTED, (6, 3, 41), 5),
}


def flat(outputs):
    return tf.nest.flatten(outputs)


def made(name, **options):
    cls, arguments, inputs, _, _ = LAYERS[name]
    return cls(CONFIG, **arguments, **options), list(inputs.values())


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_passes_the_checks_of_keras(name):
    cls, arguments, inputs, shapes, variables = LAYERS[name]
    first, *others = inputs
    TestCase().run_layer_test(
        cls,
        {"config": SHALLOW, **arguments},
        input_data=inputs[first],
        call_kwargs={other: inputs[other] for other in others},
        expected_output_shape=shapes,
        expected_num_trainable_weights=variables,
        expected_num_non_trainable_weights=0,
        supports_masking=True,
        # These two checks call the layer with only the first input.
        run_training_check=not others and name != "causal_encoder",
        run_mixed_precision_check=not others,
    )


@pytest.mark.parametrize("name", [name for name, (_, _, inputs, _, _) in LAYERS.items() if len(inputs) > 1])
def test_a_symbolic_call_of_a_layer_with_several_inputs_says_what_an_eager_one_gives(name):
    layer, inputs = made(name, dtype="mixed_bfloat16")
    symbolic = flat(layer(*(keras.KerasTensor((None, *x.shape[1:]), dtype=str(x.dtype)) for x in inputs)))
    for found, spec in zip(flat(layer(*inputs)), symbolic, strict=True):
        assert spec.dtype == found.dtype.name
        assert all(size in (None, real) for size, real in zip(spec.shape, found.shape, strict=True))
    assert {weight.dtype for weight in layer.weights} == {"float32"}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_made_frozen_can_be_trained_later(name):
    layer, inputs = made(name, trainable=False)
    layer(*inputs)
    assert layer.weights
    assert not any(weight.trainable for weight in layer.weights)
    layer.trainable = True
    assert len(layer.trainable_variables) == len(layer.weights)


@pytest.mark.parametrize("name", ["encoder", "block", "classification"])
def test_training_draws_dropout_and_a_seed_fixes_it(name):
    cls, arguments, inputs, _, _ = LAYERS[name]
    layer, twin = (cls(CONFIG, **{**arguments, "seed": 5}) for _ in range(2))
    inputs = list(inputs.values())
    inference = flat(layer(*inputs))[0]
    twin(*inputs)
    twin.set_weights(layer.get_weights())
    first, second = (flat(layer(*inputs, training=True))[-1 if name == "classification" else 0] for _ in range(2))
    assert np.abs(first - inference).max() > 1e-3
    assert np.abs(first - second).max() > 1e-3
    assert_close(flat(twin(*inputs, training=True))[0], first, 0)
    assert_close(flat(layer(*inputs, training=False))[0], inference, 0)
    explicit = [flat(layer(*inputs, training=training, seed=[1, 2]))[0] for training in (None, False, True)]
    assert np.abs(explicit[0] - inference).max() > 1e-3
    assert_close(explicit[1], explicit[0], 0)
    assert_close(explicit[2], explicit[0], 0)


def symbolic_inputs():
    return {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}


def test_a_functional_model_of_two_encoders_and_all_heads_is_saved_and_loaded(tmp_path):
    inputs = symbolic_inputs()
    first, second = BertEncoder(CONFIG, name="first"), BertEncoder(CONFIG, gradient_checkpointing=True)
    second.trainable = False
    output, other = first(inputs), second(inputs)
    positions = keras.Input((3,), dtype="int32", name="positions")
    outputs = {
        "classes": ClassificationHead(CONFIG, 2)(other),
        "distance": LinearHead(CONFIG, 1)(keras.layers.subtract([output.pooled_output, other.pooled_output])),
        "start": SpanHead(CONFIG)(output)[0],
        "words": MaskedLMHead(CONFIG, first)(output, positions),
    }
    model = keras.Model({**inputs, "positions": positions}, outputs)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    batch = {**INPUTS, "positions": POSITIONS}
    before = model(batch)
    assert before["words"].shape == (6, 3, 41)
    for name, found in loaded(batch).items():
        assert_close(found, before[name], 0, name)
    for trained in (model, loaded):
        names = [weight.path for weight in trained.weights]
        assert names.count("bert/embeddings/word_embeddings") == 2
        assert len(trained.trainable_variables) == len(names) - 39  # without the variables of the second encoder
    # The head still reads the embedding table of the encoder.
    table = loaded.get_layer("first").embeddings.word_embeddings
    table.assign(RNG.normal(size=table.shape))
    assert np.abs(loaded(batch)["words"] - before["words"]).max() > 0.1


def test_the_encoders_outputs_stay_what_they_are_in_a_model():
    inputs = symbolic_inputs()
    outputs = keras.Model(inputs, BertEncoder(CONFIG)(inputs)).predict(INPUTS, verbose=0)
    assert isinstance(outputs, EncoderOutput)
    assert repr(outputs).startswith("EncoderOutput(embedding_output=[6, 8, 12] float32, all_encoder_layers=2 x [6, ")
    assert "attention_probs=2 x [6, 3, 8, 8] float32, input_mask=[6, 8] int32)" in repr(outputs)
    assert_close(outputs.input_mask, MASK, 0)


class Subclassed(keras.Model):
    """A subclassed model, as users write it."""

    def __init__(self, **options):
        super().__init__()
        self.encoder = BertEncoder(SHALLOW, seed=1, **options)
        self.head = ClassificationHead(SHALLOW, 2, seed=1)

    def call(self, inputs, training=None):
        return self.head(self.encoder(inputs))  # Keras passes `training` on


def sequential(config=SHALLOW):
    return keras.Sequential([BertEncoder(config, seed=1), ClassificationHead(config, 2, seed=1)])


@pytest.mark.parametrize("subclassed", [True, False])
def test_a_model_learns_is_evaluated_and_predicts_on_one_device_and_on_two(subclassed):
    strategy = tf.distribute.get_strategy() if subclassed else build_strategy(DistributionConfig("mirrored"))
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = Subclassed(dtype="mixed_bfloat16", gradient_checkpointing=True) if subclassed else sequential()
        # XLA, Keras's default, takes seconds to compile. Keras's own checks use it.
        model.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy"], jit_compile=False)
    inputs = INPUTS if subclassed else IDS
    # With two devices, starting an epoch takes longer than training on a batch.
    repeated = tf.nest.map_structure(lambda x: np.tile(x, (15, 1)), inputs)
    history = model.fit(repeated, np.tile(LABELS, 15), batch_size=6, epochs=2, shuffle=False, verbose=0).history
    assert history["accuracy"][-1] == 1
    assert history["loss"][-1] < 0.3
    if subclassed:
        assert model.evaluate(inputs, LABELS, batch_size=6, verbose=0)[1] == 1
    predicted = model.predict(inputs, batch_size=6, verbose=0)
    assert_close(predicted.argmax(axis=-1), LABELS, 0)
    assert_close(predicted, model(inputs), 2e-2 if subclassed else 1e-4)


def test_lora_trains_small_matrices_only_and_is_saved_merged(tmp_path):
    model, matrices = sequential(), 2 * 2 * SHALLOW.num_hidden_layers
    model(IDS)
    encoder, head = model.layers
    names = {variable.path for variable in encoder.weights}
    encoder.enable_lora(2)
    head.trainable = False
    assert {v.name for v in model.trainable_variables} == {"lora_kernel_a", "lora_kernel_b"}
    assert len(model.trainable_variables) == matrices
    frozen = [(v, v.numpy()) for v in model.non_trainable_variables if v.dtype == "float32"]
    before = model(IDS)
    model.compile(keras.optimizers.Adam(0.1), LOSS, run_eagerly=True)
    model.fit(IDS, LABELS, epochs=3, verbose=0)
    model.run_eagerly = False
    assert all(np.array_equal(v.numpy(), value) for v, value in frozen)
    assert np.abs(model(IDS) - before).max() > 1e-5
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path, compile=False)
    assert len(loaded.weights) == len(frozen)
    assert_close(loaded(IDS), model(IDS), 1e-5)

    predicted, states = model.predict(IDS, verbose=0), encoder(IDS).sequence_output
    encoder.merge_lora()
    encoder.merge_lora()  # the second time there is nothing to add
    assert_close(model.predict(IDS, verbose=0), predicted, 1e-5)
    assert {variable.path for variable in encoder.weights} == names
    checkpoints.write_checkpoint(tmp_path / "model.ckpt", checkpoints.named_variables(encoder.weights))
    restored_encoder = restored(BertEncoder(SHALLOW), tmp_path / "model.ckpt")
    assert_close(restored_encoder(IDS).sequence_output, states, 1e-5)
    assert not encoder.trainable_variables
    encoder.trainable = True
    assert len(encoder.trainable_variables) == len(names)
    encoder.trainable = False
    encoder.enable_lora(1)
    assert len(encoder.trainable_variables) == matrices


@pytest.mark.parametrize("rank", [0, 2.5])
def test_ranks_that_are_no_ranks_are_refused(rank):
    assert_refused(f"rank is {rank}", BertEncoder(SHALLOW).enable_lora, rank)


def test_parts_that_are_frozen_stay_as_they_are():
    model = sequential(CONFIG)
    model(IDS)
    encoder = model.layers[0]
    encoder.embeddings.trainable = False
    encoder.encoder.blocks[0].trainable = False
    before = {v.path: v.numpy() for v in model.weights}
    model.compile(keras.optimizers.SGD(0.1), LOSS, run_eagerly=True)
    model.fit(IDS, LABELS, epochs=1, verbose=0)
    changed = {v.path for v in model.weights if not np.array_equal(v.numpy(), before[v.path])}
    assert not any(path.startswith(("bert/embeddings", "bert/encoder/layer_0/")) for path in changed)
    assert {"bert/encoder/layer_1/output/dense/kernel", "bert/pooler/dense/kernel", "output_weights"} <= changed


@pytest.mark.parametrize(
    ("causal", "call"),
    [
        (False, lambda e: e(IDS.tolist(), MASK.tolist())),
        (True, lambda e: e({"token_ids": IDS, "padding_mask": MASK > 0})),
        (False, lambda e: e(input_ids=IDS, attention_mask=MASK)),
    ],
    ids=["lists", "causal, dictionary", "keywords"],
)
def test_padding_is_left_out_of_losses(causal, call):
    encoder = BertEncoder(CONFIG, causal=causal)
    output = call(encoder)
    assert_close(output.pooled_output, encoder(IDS, MASK).pooled_output, 0)
    assert_close(encoder.compute_mask(INPUTS).sequence_output, MASK > 0, 0)
    assert encoder.compute_mask({"input_ids": IDS}) is None
    labels = IDS % 5
    other_padding = np.where(MASK > 0, labels, 4 - labels)
    logits = ClassificationHead(CONFIG, 5)(output.sequence_output)
    assert_close(LOSS(labels, logits), LOSS(other_padding, logits), 0)
    classes = ClassificationHead(CONFIG, 2)(output)
    assert_close(LOSS(LABELS, classes), LOSS(LABELS, tf.identity(classes)), 0)  # no mask of tokens


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ids": IDS}, "unknown input 'ids'"),
        ({"input_mask": MASK}, "input_ids are missing"),
        ({"input_ids": IDS, "input_mask": MASK, "attention_mask": MASK}, "input_mask is given twice"),
        ([IDS, MASK], r"input_ids has the shape \[2, 6, 8\]"),
        ((IDS, MASK), "input_ids is a tuple"),
        (IDS[0], r"input_ids has the shape \[8\]"),
        (np.ones((1, 33), np.int32), "33 tokens .* 32"),
        ({"input_ids": IDS, "segment_ids": MASK[:1]}, r"segment_ids has the shape \[1, 8\]"),
        ({"input_ids": IDS, "segment_ids": 2 * MASK}, "segment_ids must be from 0 to 1"),
        (IDS - 100, "input_ids must be from 0 to 40"),
        ({"input_ids": IDS, "input_mask": MASK[:, :7]}, r"input_mask has the shape \[6, 7\]"),
    ],
)
def test_inputs_that_cannot_be_read_are_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        BertEncoder(CONFIG)(inputs)


def test_an_id_without_an_embedding_gives_nan_in_a_graph():
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("input_ids", "segment_ids")}
    model = keras.Model(inputs, BertEncoder(SHALLOW)(inputs).pooled_output)
    segments = np.zeros_like(IDS)
    segments[1, 2] = 2
    outputs = tf.function(model)({"input_ids": IDS, "segment_ids": segments})
    assert np.isnan(outputs).all(axis=1).tolist() == [False, True] + [False] * 4


def test_a_masked_lm_head_needs_an_embedding_table():
    with pytest.raises(ValueError, match="no embedding table"):
        MaskedLMHead(CONFIG)(STATES, POSITIONS)
