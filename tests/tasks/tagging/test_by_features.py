"""Tests tagging with features of a frozen encoder."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import checkpoints, export
from bert_tf.checkpoints import saver
from bert_tf.config import BiLstmConfig
from bert_tf.encoder import BertEncoder
from bert_tf.features import FrozenEncoder
from bert_tf.finetuning import training_batches
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.finetuning_config import FinetuningConfig, SelectionConfig
from bert_tf.finetuning.models import NO_TAG
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime.files import InputError
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.registry import build_task
from bert_tf.tasks.tagging.by_features import FeatureBased, FeatureTaggingTask
from bert_tf.tasks.tagging.feature_tagger import FeatureTagger
from bert_tf.text import FullTokenizer
from bert_tf.training.settings import Shapes, TrainingConfig
from tests.conftest import assert_close, assert_refused, tiny_config
from tests.programs import PIECES

pytestmark = pytest.mark.plain

SENTENCES = "a O\nbcd B-PER\ne I-PER\n\nf O\nbcd B-PER\na O\n\n"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Returns an encoder and its checkpoint."""
    keras.utils.set_random_seed(1)
    encoder = BertEncoder(tiny_config(vocab_size=len(PIECES)))
    path = str(tmp_path_factory.mktemp("pretrained") / "bert_model.ckpt")
    saver.write_checkpoint(path, checkpoints.named_variables(encoder.weights))
    return encoder, path


def run_of(write, directory, pretrained, layers="-1,embeddings", units=5, features_dir=""):
    encoder, checkpoint = pretrained
    paths = {
        split: write(f"{split}.txt", SENTENCES * count) for split, count in (("train", 4), ("dev", 1), ("test", 1))
    }
    frozen = FrozenEncoder(encoder.config, checkpoint, layers, "--feature_layers")
    feature_based = FeatureBased(frozen, units=units, features_dir=features_dir)
    task = FeatureTaggingTask(feature_based, DataConfig("ner"), paths)
    tokenizer = FullTokenizer(write("vocab.txt", "\n".join(PIECES) + "\n"), do_lower_case=True)
    training = TrainingConfig(str(directory), OptimizerConfig(3e-2), 4, seed=1)
    settings = FinetuningConfig(max_seq_length=12, num_train_epochs=20, training=training)
    return FinetuningRun(task, settings, (encoder.config, tokenizer))


def test_each_batch_is_padded_to_its_longest_sentence(write, tmp_path, pretrained, monkeypatch):
    monkeypatch.setattr("bert_tf.finetuning.run.WORK_FOR_FAST_GRAPHS", 0)
    run = run_of(write, tmp_path / "out", pretrained)
    assert run.shapes is Shapes.FEW
    assert training_batches.batch_sampler(run, run.data.features("train")).buckets.tolist() == [8, 12]


def test_features_of_a_word_are_the_activations_of_its_first_piece(write, tmp_path, pretrained):
    run = run_of(write, tmp_path / "out", pretrained)
    features = run.data.features("dev")
    assert features.lengths.tolist() == [3, 3]
    assert isinstance(features.per_token["activations"][0], np.memmap)  # an array in a file
    batch = features.batch(np.array([1]), 4)
    assert run.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist()) == ["f", "b", "a", "[PAD]"]
    ids = run.tokenizer.convert_tokens_to_ids(["[CLS]", "f", "b", "##c", "##d", "a", "[SEP]"])
    output = pretrained[0](np.array([ids]))
    firsts = [1, 2, 5]
    assert_close(batch["activations"][0, :3, 0], output.sequence_output.numpy()[0, firsts], 1e-5)
    assert_close(batch["activations"][0, :3, 1], output.embedding_output.numpy()[0, firsts], 1e-5)
    assert not batch["activations"][0, 3].any()
    assert [run.task.tags[i] for i in batch["tag_ids"][0, :3]] == ["O", "B-PER", "O"]


@pytest.fixture
def changed(pretrained, tmp_path):
    """Returns the encoder with a checkpoint of other weights."""
    weights = checkpoints.named_variables(pretrained[0].weights)
    saver.write_checkpoint(str(tmp_path / "changed.ckpt"), {name: value + 1 for name, value in weights.items()})
    return pretrained[0], str(tmp_path / "changed.ckpt")


@pytest.mark.eager
def test_features_are_computed_once_for_all_runs(write, tmp_path, pretrained, changed, monkeypatch):
    def activations(model=pretrained, **options):
        features = run_of(write, tmp_path / "out", model, **options).data.features("dev")
        return features.batch(np.arange(2), 4)["activations"]

    directory, expected = tmp_path / "features", activations()
    activations(features_dir=str(directory))
    assert activations(layers="-1", features_dir=str(directory)).shape == (2, 4, 1, 12)
    assert len(list(directory.iterdir())) == 2
    monkeypatch.setattr(FrozenEncoder, "compiled", None)  # the encoder is not called
    assert_close(activations(features_dir=str(directory)), expected, 0)
    with pytest.raises(TypeError):  # the weights differ, so the encoder is called
        activations(changed, features_dir=str(directory))
    assert len(list(directory.iterdir())) == 2
    assert_refused("--features_dir is 'gs://bucket'", activations, features_dir="gs://bucket")


def test_a_tagger_is_trained_on_features_and_writes_conll(write, tmp_path, pretrained, changed):
    out = tmp_path / "out"
    run = run_of(write, out, pretrained)
    steps = dict.fromkeys(("do_train", "do_eval", "do_predict"), True)
    results = finetune(run.task, run.settings.replace(**steps, selection=SelectionConfig("end")), run=run)
    assert results["eval"]["dev"]["eval_f1"] == 1.0
    lines = (out / "test_predictions.conll").read_text().split("\n")
    assert lines[:4] == ["a O O", "bcd B-PER B-PER", "e I-PER I-PER", ""]
    run_of(write, out, pretrained).check_model()
    assert_refused("has a run with feature_layers", bert_tf.TokenClassifier.load, out)
    assert_refused(f"--model_dir: {out}: .* BiLSTM", export.export_run, str(out), tmp_path / "exported")
    other_layers = run_of(write, out, pretrained, layers="-2,embeddings")
    assert_refused("feature_layers 1 was -1, and is -2 now", other_layers.check_model)
    # The features would belong to another model.
    assert_refused("encoder_sha256 was", run_of(write, out, changed).check_model)
    other = run_of(write, out, pretrained, units=6)
    settings = other.settings.replace(do_train=True)
    assert_refused("bilstm_units was 5, and is 6 now", finetune, other.task, settings, run=other)


def test_invalid_settings_are_refused(write, tmp_path, pretrained):
    config = pretrained[0].config
    with pytest.raises(InputError, match="--feature_layers: there is no layer 2 in a model of 2 layers"):
        FrozenEncoder(config, pretrained[1], "2", "--feature_layers")
    assert_refused("--feature_layers requires --init_checkpoint", FrozenEncoder, config, None, "-1", "--feature_layers")
    feature_based = FeatureBased(FrozenEncoder(config, pretrained[1], "-1", "--feature_layers"))
    write("train.txt", SENTENCES)
    task = build_task(DataConfig("ner", str(tmp_path)), "", do_train=True, feature_based=feature_based)
    assert isinstance(task, FeatureTaggingTask)
    assert task.labels == ("PER",)


def batch_of(lengths, width=12, layers=3):
    rng = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    return {
        "activations": rng.normal(size=(*mask.shape, layers, width)).astype(np.float32),
        "input_mask": mask,
        "tag_ids": np.where(mask, rng.integers(0, 5, mask.shape), NO_TAG).astype(np.int32),
    }


def test_the_loss_is_the_mean_over_words_and_reaches_all_variables():
    batch = batch_of([4, 2])
    for combination, width in (("concat", 36), ("weighted_sum", 12)):
        model = FeatureTagger(tiny_config(), 3, 5, BiLstmConfig(units=2), combination)
        assert model.variables[0].shape == (width, 8)
        with tf.GradientTape() as tape:
            loss, metrics = model.loss(batch, model.totals(batch), None)
        gradients = tape.gradient(loss, [variable.value for variable in model.trained_variables])
        assert all(gradient is not None for gradient in gradients)
        logits = model.logits(batch).numpy()
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        words = [(0, t) for t in range(4)] + [(1, t) for t in range(2)]
        expected = -np.mean([log_probs[b, t, batch["tag_ids"][b, t]] for b, t in words])
        assert_close(loss, expected, 1e-5)
        assert float(metrics["accuracy"][1]) == 6


def test_an_untrained_weighted_sum_is_the_mean():
    batch = batch_of([3])
    model = FeatureTagger(tiny_config(), 3, 5, BiLstmConfig(units=2), "weighted_sum")
    mean = batch | {"activations": np.repeat(batch["activations"].mean(axis=2, keepdims=True), 3, axis=2)}
    assert_close(model.logits(batch), model.logits(mean), 1e-6)
