import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoints, optimization
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import SpanModel
from bert_tf.optimization import AdamWeightDecay, OptimizerConfig
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime.distribution import DistributionConfig, build_strategy
from bert_tf.runtime.files import InputError
from bert_tf.training.contract import TrainingConfig
from bert_tf.training.loop import Trainer
from tests.conftest import assert_close, golden_json, golden_path, restored, train_steps, without_dropout


def test_schedule_equals_the_releases():
    for case in golden_json("schedule/schedule.json"):
        config = OptimizerConfig(case["init_lr"], case["num_train_steps"], case["num_warmup_steps"])
        rates = [float(optimization.learning_rate(config, tf.constant(s))) for s in range(len(case["learning_rate"]))]
        np.testing.assert_allclose(rates, case["learning_rate"], rtol=1e-6, atol=1e-12)


def run_golden(name, model, batches, checkpoint, num_warmup_steps):
    folder = golden_path(f"optimizer/{name}")
    steps = golden_json(f"optimizer/{name}/steps.json")
    steps = steps["steps"] if isinstance(steps, dict) else steps
    restored(model, checkpoint)
    config = TrainingConfig("", OptimizerConfig(1e-3, len(steps), num_warmup_steps), train_batch_size=1)
    strategy = build_strategy(DistributionConfig())
    with strategy.scope():
        trainer = Trainer(model, config, strategy)
    arrays = {k: x.astype(np.int32) if x.dtype == np.int64 else x for k, x in np.load(batches).items()}
    batches = iter(tf.data.Dataset.from_tensor_slices(arrays))
    results = []
    for step in steps:
        assert trainer.step == step["global_step_before"]
        rate = optimization.learning_rate(config.optimizer, trainer.step)
        np.testing.assert_allclose(rate, step["learning_rate"], rtol=1e-6)
        results.append((train_steps(trainer, batches, 1), step))
    return trainer, results, checkpoints.open_checkpoint(str(folder / "final.ckpt"))


def check_final_weights(trainer, final, cancelling=("key/bias",)):
    slots = {name for name in trainer.state() if name.endswith(("adam_m", "adam_v"))}
    unsaved = set() if slots & set(final.shapes) else slots | {"global_step"}
    assert set(final.shapes) == set(trainer.state()) - unsaved
    for name in final.shapes:
        variable = trainer.state()[name]
        atol = 1e-6 if name.endswith(("adam_m", "adam_v")) else 5e-6
        assert_close(variable.numpy(), final.read(name), 1e-4 if name.endswith(cancelling) else atol, name)


@pytest.mark.parametrize(("name", "num_warmup_steps"), [("pretrain_warmup", 3), ("pretrain_nowarmup", 0)])
def test_pretraining_steps_equal_the_releases(name, num_warmup_steps):
    config = BertConfig.from_json_file(str(golden_path("optimizer/pretrain_bert_config.json")))
    trainer, results, final = run_golden(
        name,
        PretrainingModel(without_dropout(config)),
        golden_path("optimizer/pretrain_batches.npz"),
        golden_path("model/gelu") / "bert_model.ckpt",
        num_warmup_steps,
    )
    for ours, step in results:
        np.testing.assert_allclose(ours["loss"], step["loss"], rtol=1e-4)
        np.testing.assert_allclose(ours["gradient_norm"], step["global_norm"], rtol=1e-4)
    check_final_weights(trainer, final)


def squad_model():
    config = BertConfig.from_json_file(str(golden_path("optimizer/squad_bert_config.json")))
    return SpanModel(without_dropout(config))


def test_squad_steps_without_clipping_equal_the_releases():
    trainer, results, final = run_golden(
        "squad_smallgrad",
        squad_model(),
        golden_path("optimizer/squad_batches.npz"),
        golden_path("optimizer/squad_smallgrad") / "init.ckpt",
        0,
    )
    for ours, step in results:
        np.testing.assert_allclose(ours["loss"], step["loss"], rtol=1e-4)
        np.testing.assert_allclose(ours["gradient_norm"], step["global_norm_if_all_gradients_dense"], rtol=1e-4)
    cancelling = ("key/bias", "cls/squad/output_bias", "layer_1/output/LayerNorm/beta")
    check_final_weights(trainer, final, cancelling)


def test_squad_steps_clip_by_the_norm_of_dense_gradients():
    trainer, results, final = run_golden(
        "squad_warmup",
        squad_model(),
        golden_path("optimizer/squad_batches.npz"),
        golden_path("heads") / "squad.ckpt",
        1,
    )
    # The release computed the norm of the embeddings' gradient before adding up repeated rows, so it clips by another
    # factor. The two runs agree only until the weights first differ.
    for ours, step in results[:2]:
        np.testing.assert_allclose(ours["loss"], step["loss"], rtol=1e-4)
        np.testing.assert_allclose(ours["gradient_norm"], step["global_norm_if_all_gradients_dense"], rtol=1e-4)
    pooler = "bert/pooler/dense/kernel"
    assert_close(trainer.state()[pooler].numpy(), final.read(pooler), 0)
    assert f"{pooler}/adam_m" not in trainer.state()
    assert f"{pooler}/adam_m" not in final.shapes


def test_weight_decay_follows_the_released_rule():
    assert optimization.is_decayed("bert/encoder/layer_0/output/dense/kernel")
    assert optimization.is_decayed("bert/embeddings/word_embeddings")
    assert optimization.is_decayed("output_weights")
    for name in ("bert/encoder/layer_0/output/LayerNorm/gamma", "cls/predictions/output_bias", "a/layer_norm/b"):
        assert not optimization.is_decayed(name)


def updated(config, start, gradients):
    """The update rules of both optimizers in NumPy; a step with None for its gradient is skipped."""
    w, m, v = start.astype(np.float64), np.zeros_like(start), np.zeros_like(start)
    updates = 0
    for step, g in enumerate(gradients):
        if g is None:
            continue
        updates += 1
        rate = float(optimization.learning_rate(config, tf.constant(step)))
        g = g / max(1.0, np.sqrt((g**2).sum()))
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        m_hat, v_hat = m, v
        if config.bias_correction or config.optimizer == "lamb":
            m_hat, v_hat = m / (1 - 0.9**updates), v / (1 - 0.999**updates)
        update = m_hat / (np.sqrt(v_hat) + 1e-6) + 0.01 * w
        if config.optimizer == "lamb":
            rate *= np.linalg.norm(w) / np.linalg.norm(update)
        w = w - rate * update
    return w


@pytest.mark.parametrize("options", [{}, {"bias_correction": True}, {"optimizer": "lamb"}])
def test_update_rules(options):
    config = OptimizerConfig(0.1, 10, 0, **options)
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(3, 5)), [*rng.normal(size=(4, 3, 5))]
    gradients.insert(1, None)
    variable = keras.Variable(start.astype(np.float32), name="kernel")
    optimizer = optimization.build_optimizer(config, [variable])

    @tf.function
    def update(gradient):
        optimizer.apply([gradient], tf.linalg.global_norm([gradient]))
        optimizer.global_step.assign_add(1)

    for gradient in gradients:
        if gradient is None:
            optimizer.global_step.assign_add(1)
            optimizer.skipped_steps.assign_add(1)
        else:
            update(tf.constant(gradient, tf.float32))
    assert_close(variable.numpy(), updated(config, start, gradients), 1e-5)


def test_lamb_does_not_scale_biases_and_has_its_own_slots():
    kernel, bias = (keras.Variable(np.full((4,), 5.0, np.float32), name=name) for name in ("kernel", "bias"))
    optimizer = optimization.build_optimizer(OptimizerConfig(0.1, 10, 0, optimizer="lamb"), [kernel, bias])
    assert sorted(optimizer.state()) == ["bias/lamb_m", "bias/lamb_v", "global_step", "kernel/lamb_m", "kernel/lamb_v"]
    gradients = [tf.constant([0.1, 0.1, 0.1, 0.1])] * 2
    tf.function(optimizer.apply, autograph=False)(gradients, tf.linalg.global_norm(gradients))
    assert_close(bias.numpy(), [4.9] * 4, 1e-5)
    assert_close(kernel.numpy(), [4.5] * 4, 1e-5)


def test_bad_settings_and_repeated_variables_are_refused():
    with pytest.raises(InputError, match="--num_train_steps is 0"):
        OptimizerConfig(1e-3, 0)
    with pytest.raises(InputError, match="--learning_rate"):
        OptimizerConfig(0.0, 1)
    variable = keras.Variable(np.zeros(2), name="same")
    with pytest.raises(ValueError, match="same"):
        AdamWeightDecay(OptimizerConfig(1e-3, 1), [variable, variable])
    assert dataclasses.asdict(OptimizerConfig(1e-3, 1))["clip_norm"] == 1.0
