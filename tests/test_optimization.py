import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoints, optimization
from bert_tf.config import BertConfig
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.finetuning.models import SpanModel
from bert_tf.optimization import AdamWeightDecay, OptimizerConfig, SecondSchedule
from bert_tf.optimization.optimizers import layer_rates
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.pretraining.recipes import RECIPES
from bert_tf.runtime.files import InputError
from bert_tf.training.loop import Trainer
from bert_tf.training.settings import TrainingConfig
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
    w, count = start.astype(np.float64), 0
    beta_1, beta_2, second = config.beta_1, config.beta_2, config.second_schedule
    for step, g in enumerate(gradients):
        if step == 0 or (second and second.reset_moments and step == second.start):
            m, v, count = np.zeros_like(start), np.zeros_like(start), 0
        if g is None:
            continue
        count += 1
        rate = float(optimization.learning_rate(config, tf.constant(step)))
        g = g / max(1.0, np.sqrt((g**2).sum()) / config.clip_norm)
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        m_hat, v_hat = m, v
        if config.bias_correction or config.optimizer == "lamb":
            m_hat, v_hat = m / (1 - beta_1**count), v / (1 - beta_2**count)
        update = m_hat / (np.sqrt(v_hat) + config.epsilon) + config.weight_decay_rate * w
        if config.optimizer == "lamb":
            rate *= np.linalg.norm(w) / np.linalg.norm(update)
        w = w - rate * update
    return w


OTHER_NUMBERS = {"beta_1": 0.8, "beta_2": 0.98, "epsilon": 1e-2, "weight_decay_rate": 0.3, "clip_norm": 0.5}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias_correction": True},
        {"optimizer": "lamb"},
        OTHER_NUMBERS | {"lr_decay_power": 0.5, "second_schedule": SecondSchedule(2, 0.2, 1)},
        OTHER_NUMBERS | {"optimizer": "lamb", "second_schedule": SecondSchedule(2, 0.2, reset_moments=True)},
    ],
)
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

    for step, gradient in enumerate(gradients):
        optimizer.begin_phase(step)
        if gradient is None:
            optimizer.global_step.assign_add(1)
            optimizer.skipped_steps.assign_add(1)
        else:
            update(tf.constant(gradient, tf.float32))
    assert_close(variable.numpy(), updated(config, start, gradients), 1e-5)


def test_layers_have_rates_of_their_own():
    factors = {
        "output_weights": 1.0,
        "bert/pooler/dense/kernel": 1.0,
        "bert/encoder/layer_11/output/dense/kernel": 0.5,
        "bert/encoder/layer_2/output/dense/kernel": 0.5**10,
        "bert/encoder/layer_0/output/LayerNorm/gamma": 0.5**12,
        "bert/embeddings/word_embeddings": 0.5**13,
    }
    assert layer_rates(list(factors), 0.5) == list(factors.values())
    assert layer_rates(["kernel"], 0.5) == [1.0]
    updates = {}
    for decay in (1.0, 0.5):
        variables = [keras.Variable([1.0], name=path.replace("/", "_")) for path in factors]
        for variable, path in zip(variables, factors, strict=True):
            variable._path = path
        config = OptimizerConfig(0.1, 10, layerwise_lr_decay=decay, weight_decay_rate=0.0)
        optimization.build_optimizer(config, variables).apply([tf.constant([1.0])] * len(variables), None)
        updates[decay] = np.array([1.0 - float(variable[0]) for variable in variables])
    np.testing.assert_allclose(updates[0.5], updates[1.0] * list(factors.values()), rtol=1e-3)


def test_each_phase_of_the_lamb_recipe_has_its_own_schedule():
    recipe = RECIPES["lamb_64k"]
    start = round(recipe["num_train_steps"] * (1 - recipe["second_phase_proportion"]))
    assert (start, recipe["num_train_steps"]) == (7038, 8599)
    sizes = [recipe["train_batch_size"], recipe["second_train_batch_size"]]
    assert (recipe["optimizer"], sizes) == ("lamb", [65536, 32768])
    second = SecondSchedule(start, recipe["second_learning_rate"], recipe["second_num_warmup_steps"])
    config = OptimizerConfig(
        recipe["learning_rate"],
        recipe["num_train_steps"],
        recipe["num_warmup_steps"],
        lr_decay_power=recipe["lr_decay_power"],
        second_schedule=second,
    )
    expected = {
        0: 0.0,
        2000: 0.006 * 2000 / 2001,
        2001: 0.006 * (1 - 2001 / 7038) ** 0.5,
        7037: 0.006 * (1 - 7037 / 7038) ** 0.5,
        7038: 0.0,
        7039: 0.004 / 200,
        7237: 0.004 * 199 / 200,
        7238: 0.004 * (1 - 200 / 1561) ** 0.5,
        8598: 0.004 * (1 - 1560 / 1561) ** 0.5,
        8599: 0.0,
    }
    rates = [float(optimization.learning_rate(config, tf.constant(step))) for step in expected]
    np.testing.assert_allclose(rates, list(expected.values()), rtol=1e-3, atol=1e-9)


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
    for name, flag_name in (("beta_1", "adam_beta_1"), ("beta_2", "adam_beta_2"), ("epsilon", "adam_epsilon")):
        with pytest.raises(InputError, match=f"--{flag_name} is -1"):
            OptimizerConfig(1e-3, 1, **{name: -1.0})
    for name in ("weight_decay_rate", "clip_norm", "lr_decay_power"):
        with pytest.raises(InputError, match=f"--{name} is nan"):
            OptimizerConfig(1e-3, 1, **{name: float("nan")})
    with pytest.raises(InputError, match="--second_learning_rate is 0"):
        OptimizerConfig(1e-3, 2, second_schedule=SecondSchedule(1, 0.0))
    with pytest.raises(InputError, match="begins the second phase after step 2 of 2"):
        OptimizerConfig(1e-3, 2, second_schedule=SecondSchedule(2, 0.1))
    variable = keras.Variable(np.zeros(2), name="same")
    with pytest.raises(ValueError, match="same"):
        AdamWeightDecay(OptimizerConfig(1e-3, 1), [variable, variable])
    assert dataclasses.asdict(OptimizerConfig(1e-3, 1))["clip_norm"] == 1.0


def test_a_warm_up_longer_than_the_training_is_noticed():
    assert OptimizerConfig(learning_rate=1.0, num_train_steps=20, num_warmup_steps=20).never_warm
    assert not OptimizerConfig(learning_rate=1.0, num_train_steps=20, num_warmup_steps=2).never_warm
