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
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.pretraining.recipes import RECIPES
from bert_tf.runtime.files import InputError
from bert_tf.training.settings import TrainingConfig
from tests.conftest import (
    assert_close,
    golden_json,
    golden_names,
    golden_path,
    int32,
    restored,
    train_steps,
    trainer_of,
)


@pytest.mark.golden
def test_learning_rates_equal_the_original_code():
    for case in golden_json("schedule/schedule.json"):
        config = OptimizerConfig(case["init_lr"], case["num_train_steps"], case["num_warmup_steps"])
        steps = range(case["first_step"], case["first_step"] + len(case["learning_rate"]))
        rates = [float(optimization.learning_rate(config, tf.constant(step))) for step in steps]
        np.testing.assert_allclose(rates, case["learning_rate"], rtol=1e-6, atol=1e-12)


# To compare graphs with the original code, the other cases, one for each model, are enough.
EAGER = ("pretrain_warmup", "squad_smallgrad")


@pytest.mark.golden
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[pytest.mark.eager] * (x in EAGER)) for x in golden_names("optimizer/*/steps.json")],
)
def test_training_steps_equal_the_original_code(name):
    """The original code computes the gradient norm before adding up repeated rows; this project adds them up first."""
    kind = name.partition("_")[0]
    model_config = BertConfig.from_json_file(str(golden_path(f"optimizer/{kind}_bert_config.json")))
    model_config = model_config.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    run = golden_json(f"optimizer/{name}/steps.json")
    model = {"pretrain": PretrainingModel, "squad": SpanModel}[kind](model_config)
    restored(model, golden_path(f"{run['init_checkpoint']}.index").with_suffix(""))
    schedule = (run[key] for key in ("init_lr", "num_train_steps", "num_warmup_steps"))
    numbers = {key: run[key] for key in ("weight_decay_rate", "beta_1", "beta_2", "epsilon", "clip_norm")}
    config = TrainingConfig("", OptimizerConfig(*schedule, **numbers), train_batch_size=1)
    trainer = trainer_of(model, config, build_strategy(DistributionConfig()))
    arrays = int32(np.load(golden_path(f"optimizer/{kind}_batches.npz")))
    batches = iter(tf.data.Dataset.from_tensor_slices(arrays))
    norm_name = "global_norm_if_all_gradients_dense" if run["variables_with_IndexedSlices_gradient"] else "global_norm"
    is_same = True
    for step in run["steps"]:
        assert trainer.step == step["global_step_before"]
        rate = optimization.learning_rate(config.optimizer, trainer.step)
        np.testing.assert_allclose(rate, step["learning_rate"], rtol=1e-6)
        found = train_steps(trainer, batches, 1)
        if is_same:
            np.testing.assert_allclose(found["loss"], step["loss"], rtol=1e-4)
            np.testing.assert_allclose(found["gradient_norm"], step[norm_name], rtol=1e-4)
        factors = [min(1, run["clip_norm"] / step[norm]) for norm in (norm_name, "global_norm")]
        is_same = is_same and (rate == 0 or factors[0] == pytest.approx(factors[1], rel=1e-4))

    final, state = checkpoints.open_checkpoint(golden_path(f"optimizer/{name}/final.ckpt.index")), trainer.state()
    slots = {path for path in state if path.endswith(("adam_m", "adam_v"))}
    assert set(final.shapes) == set(state) - (set() if run["slots_saved"] else slots | {"global_step"})
    untrained = run["variables_without_slots"]
    assert {path.rpartition("/")[0] for path in slots} == {v.path for v in model.variables} - set(untrained)
    # The exact gradients of these variables are zero, or cancel.
    cancelling = ["key/bias"]
    if kind == "squad":
        last = model_config.num_hidden_layers - 1
        cancelling += ["cls/squad/output_bias", f"layer_{last}/output/LayerNorm/beta"]
    for path in final.shapes if is_same else untrained:
        atol = 1e-6 if path in slots else 1e-4 if path.endswith(tuple(cancelling)) else 5e-6
        assert_close(state[path].numpy(), final.read(path), atol, path)


def test_weight_decay_follows_the_released_rule():
    assert optimization.is_decayed("bert/encoder/layer_0/output/dense/kernel")
    assert optimization.is_decayed("bert/embeddings/word_embeddings")
    assert optimization.is_decayed("output_weights")
    for name in ("bert/encoder/layer_0/output/LayerNorm/gamma", "cls/predictions/output_bias", "a/layer_norm/b"):
        assert not optimization.is_decayed(name)


def updated(config, start, gradients):
    """Applies the update rules of both optimizers in NumPy. A step whose gradient is None is skipped."""
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
    def update(gradient, is_finite):
        optimizer.apply([gradient], tf.linalg.global_norm([gradient]), is_finite)
        optimizer.global_step.assign_add(1)

    for step, gradient in enumerate(gradients):
        optimizer.begin_phase(step)
        is_finite = gradient is not None
        update(tf.constant(gradient if is_finite else np.full((3, 5), np.nan), tf.float32), tf.constant(is_finite))
        if not is_finite:
            optimizer.skipped_steps.assign_add(1)
    assert_close(variable.numpy(), updated(config, start, gradients), 1e-5)


def test_layers_have_rates_of_their_own():
    factors = {
        "output_weights": 1.0,
        "bert/pooler/dense/kernel": 1.0,
        "bert/encoder/layer_11/output/dense/kernel": 0.5,
        "bert/encoder/layer_2/output/dense/kernel": 0.5**10,
        "bert/encoder/layer_0/output/LayerNorm/gamma": 0.5**12,
        "bert/embeddings/word_embeddings": 0.5**13,
        "kernel": 1.0,
    }
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
    sizes = [recipe["train_batch_size"], recipe["second_train_batch_size"]]
    assert (recipe["optimizer"], sizes, recipe["num_train_steps"]) == ("lamb", [65536, 32768], 8599)
    start = round(recipe["num_train_steps"] * (1 - recipe["second_phase_proportion"]))
    second = SecondSchedule(start, recipe["second_learning_rate"], recipe["second_num_warmup_steps"])
    names = ("learning_rate", "num_train_steps", "num_warmup_steps", "lr_decay_power")
    config = OptimizerConfig(**{name: recipe[name] for name in names}, second_schedule=second)
    # The last step of each warm-up, and the first and the last one of each decay.
    first = {0: 0.0, 2000: 2000 / 2001, 2001: (1 - 2001 / 7038) ** 0.5, 7037: (1 - 7037 / 7038) ** 0.5}
    then = {7038: 0.0, 7237: 199 / 200, 7238: (1 - 200 / 1561) ** 0.5, 8598: (1 - 1560 / 1561) ** 0.5, 8599: 0.0}
    for factors, peak in ((first, 0.006), (then, 0.004)):
        rates = [float(optimization.learning_rate(config, tf.constant(step))) for step in factors]
        np.testing.assert_allclose(rates, [peak * factor for factor in factors.values()], rtol=1e-3, atol=1e-9)


def test_lamb_does_not_scale_biases_and_has_its_own_slots():
    kernel, bias = (keras.Variable(np.full((4,), 5.0, np.float32), name=name) for name in ("kernel", "bias"))
    optimizer = optimization.build_optimizer(OptimizerConfig(0.1, 10, 0, optimizer="lamb"), [kernel, bias])
    assert sorted(optimizer.state()) == ["bias/lamb_m", "bias/lamb_v", "global_step", "kernel/lamb_m", "kernel/lamb_v"]
    gradients = [tf.constant([0.1, 0.1, 0.1, 0.1])] * 2
    tf.function(optimizer.apply, autograph=False)(gradients, tf.linalg.global_norm(gradients))
    assert_close(bias.numpy(), [4.9] * 4, 1e-5)
    assert_close(kernel.numpy(), [4.5] * 4, 1e-5)


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        ("--num_train_steps", {"num_train_steps": 0}),
        ("--learning_rate", {"learning_rate": 0.0}),
        ("--adam_beta_1", {"beta_1": -1.0}),
        ("--adam_beta_2", {"beta_2": 1.0}),
        ("--adam_epsilon", {"epsilon": -1.0}),
        ("--weight_decay_rate", {"weight_decay_rate": float("inf")}),
        ("--clip_norm", {"clip_norm": float("nan")}),
        ("--lr_decay_power", {"lr_decay_power": float("nan")}),
        ("--optimizer", {"optimizer": "sgd"}),
        ("--second_learning_rate", {"second_schedule": lambda: SecondSchedule(1, 0.0)}),
        ("--second_phase_proportion", {"second_schedule": lambda: SecondSchedule(2, 0.1)}),
    ],
)
def test_bad_settings_are_refused(place, settings):
    with pytest.raises(InputError) as raised:
        settings = {name: value() if callable(value) else value for name, value in settings.items()}
        OptimizerConfig(**{"learning_rate": 1e-3, "num_train_steps": 2} | settings)
    assert raised.value.where == place


def test_repeated_variables_are_refused():
    variable = keras.Variable(np.zeros(2), name="same")
    with pytest.raises(ValueError, match="same"):
        AdamWeightDecay(OptimizerConfig(1e-3, 1), [variable, variable])
    assert OptimizerConfig(1e-3, 1).to_dict()["clip_norm"] == 1.0


def test_a_warm_up_longer_than_the_training_is_noticed():
    assert OptimizerConfig(learning_rate=1.0, num_train_steps=20, num_warmup_steps=20).never_warm
    assert not OptimizerConfig(learning_rate=1.0, num_train_steps=20, num_warmup_steps=2).never_warm
