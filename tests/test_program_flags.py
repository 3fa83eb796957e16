"""Tests flags that several programs share, and their conversion to settings."""

import ast
import contextlib
import json
import math
from typing import Annotated

import pytest
from absl import flags
from absl.testing import flagsaver

from bert_tf import program_flags
from bert_tf.checkpoints import pretrained
from bert_tf.config import ModelFiles
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.optimization.settings import OptimizerConfig
from bert_tf.pretraining.pretraining_config import PretrainingConfig
from bert_tf.runtime import program, settings
from bert_tf.runtime.files import InputError
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tasks.data_config import TASK_NAMES, Columns, FeatureConfig
from bert_tf.tasks.squad.rules import AnswerConfig, SquadConfig
from bert_tf.training.settings import TrainingConfig
from data_prep.options import DataOptions, VocabularyOptions
from tests import command_server, programs
from tests.conftest import assert_refused, tiny_config


@contextlib.contextmanager
def defined(group, *arguments, **options):
    """Defines a group of flags, in place of flags of a program that another test imported."""
    modules = flags.FLAGS.flags_by_module_dict()
    of_absl = {flag for module, found in modules.items() if module.startswith("absl") for flag in found}
    # Flags that were restored have no module.
    others = {name: flags.FLAGS[name] for name in flags.FLAGS if flags.FLAGS[name] not in of_absl}
    for name in others:
        delattr(flags.FLAGS, name)
    known = set(flags.FLAGS)
    try:
        made = group(*arguments, **options)
        flags.FLAGS.mark_as_parsed()
        yield made
    finally:
        for name in set(flags.FLAGS) - known:
            delattr(flags.FLAGS, name)
        for name, flag in others.items():
            flags.FLAGS[name] = flag


@pytest.fixture
def sizes():
    with defined(program_flags.ModelSizeFlags) as made:
        yield made


def parsed(kind, *given, **options):
    """Returns the settings for the given flags."""
    with defined(program_flags.SettingsFlags, kind, **options) as made:
        flags.FLAGS(["program", *given])
        return made.config()


SETTINGS = [ModelFiles, DistributionConfig, OptimizerConfig, TrainingConfig, FinetuningConfig, ExportConfig]
SETTINGS += [Columns, FeatureConfig, SquadConfig, AnswerConfig]


def test_a_new_setting_is_a_flag_and_is_recorded():
    class Inner(settings.Settings, frozen=True):
        names: Annotated[tuple[int, ...], settings.about("Numbers.", flag="numbers_of_a_test", group="Own")] = (1,)

    class Outer(settings.Settings, frozen=True):
        inner: Inner = Inner()
        share_of_a_test: (
            Annotated[float, settings.about("A share.", ge=0, le=1), settings.AbsentFrom("program_of_a_test")] | None
        ) = None
        hidden: int = 3

    assert Outer().flag_values() == {"numbers_of_a_test": (1,), "share_of_a_test": None}
    made = parsed(Outer, "--numbers_of_a_test=2,3", "--share_of_a_test=0.5")
    assert made == Outer(Inner((2, 3)), 0.5)
    assert parsed(Outer, names=(4,), program_name="program_of_a_test").inner.names == (4,)
    for given in ("--numbers_of_a_test=2,x", "--share_of_a_test=2"):
        assert_refused(rf"^{given.partition('=')[0]}\b", parsed, Outer, given)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        *((kind(), "") for kind in SETTINGS),
        (DistributionConfig("tpu", "grpc://a", worker_timeout=7), "--use_tpu --master=grpc://a --worker_timeout=7"),
        (TrainingConfig("", OptimizerConfig(beta_1=0.8, clip_norm=math.inf)), "--adam_beta_1=0.8 --clip_norm=inf"),
        (TrainingConfig(seed=3, dtype="bfloat16"), "--random_seed=3 --dtype=mixed_bfloat16"),
    ],
    ids=lambda value: value or "defaults" if isinstance(value, str) else type(value).__name__,
)
def test_flags_become_settings(expected, given):
    assert parsed(type(expected), *given.split()) == expected


@pytest.mark.parametrize(
    "given",
    [
        *("--adam_beta_1=1", "--train_batch_size=0", "--random_seed=-1", "--evaluate_every=day"),
        *("--log_steps=0", "--keep_checkpoint_max=-1", "--max_nonfinite_steps=-1"),
        *(f"--profile_steps={value}" for value in ("2:1", "5:5", "100", "100:", "-1:5", "a:b")),
        *(f"--sweep_batch_sizes={value}" for value in ("", "16,x", "1.5")),
    ],
)
def test_values_out_of_bounds_are_refused(given):
    assert_refused(rf"^{given.partition('=')[0]}\b", parsed, FinetuningConfig, given)
    assert_refused("--dtype", TrainingConfig, dtype="float8")


DEFAULTS = """
import sys
import run_classifier
from absl import flags

flags.FLAGS(["run_classifier.py", "--task_name=ner", "--output_dir=x", "--do_train", *sys.argv[2:]])
values = run_classifier.read_settings()[0].flag_values()
print([values[name] for name in sys.argv[1].split(",")])
"""


def defaults(names, *given):
    """Returns the values of flags when run_classifier.py trains."""
    return ast.literal_eval(programs.run("-c", DEFAULTS, names, *given, server=command_server.without_tensorflow))


def test_a_sweep_tries_what_the_paper_does_and_a_fresh_bilstm_trains_faster_and_longer():
    names = "sweep_batch_sizes,sweep_learning_rates,sweep_epochs,learning_rate,num_train_epochs"
    sweep = [(16, 32), (5e-5, 3e-5, 2e-5), (2.0, 3.0, 4.0)]
    assert defaults(names) == [*sweep, 5e-5, 3.0]
    assert defaults(names, "--feature_layers=-1") == [*sweep, 1e-3, 10.0]


def test_a_released_size_and_its_changes_become_a_config(sizes, write):
    flags.FLAGS.mark_as_parsed()
    vocab = write("vocab.txt", "[PAD]\n[UNK]\na\n")
    with flagsaver.as_parsed(model_size="mini", num_hidden_layers="3"):
        config = sizes.config(None, vocab)
        assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (3, 256, 1024)
        assert config.vocab_size == 3
    with flagsaver.as_parsed(model_size="mini", hidden_size="128", num_attention_heads="2"):
        config = sizes.config(None, vocab)
        assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (128, 512, 2)
    with flagsaver.as_parsed(model_size="tiny", hidden_dropout_prob="0", initializer_range="0.1"):
        config = sizes.config(None, vocab)
        assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.0, 0.1)
        assert config.initializer_range == 0.1


def test_a_config_file_takes_the_place_of_a_size(sizes, write):
    flags.FLAGS.mark_as_parsed()
    path = write("bert_config.json", json.dumps(tiny_config().to_dict()))
    assert sizes.config(path, None) == tiny_config()
    assert sizes.config(None, None, default_file=path) == tiny_config()
    with flagsaver.flagsaver(model_size="mini", hidden_dropout_prob=0.0):  # as a recipe sets them
        assert sizes.config(path, None) == tiny_config()
    with flagsaver.as_parsed(model_size="mini"):
        assert sizes.config(None, write("vocab.txt", "a\n"), default_file=path).hidden_size == 256
    with flagsaver.as_parsed(model_size="mini"), pytest.raises(InputError, match="Pass either --bert_config_file or"):
        sizes.config(path, None)
    with flagsaver.as_parsed(model_size="mini"), pytest.raises(InputError, match="Pass --vocab_file too"):
        sizes.config(None, None)
    assert_refused("Pass either --bert_config_file or", sizes.config, None, "vocab.txt")
    assert_refused("--bert_config_file is missing: --init_checkpoint is not given", pretrained.read_model, ModelFiles())


def test_conditions_and_roles_name_flags_values_and_programs():
    """A typo would switch off the check of a condition, or would define a flag that a program must not have."""
    shown = programs.run("docs/hooks/flag_reference.py", server=command_server.without_tensorflow)
    described = json.loads(shown)
    flags_of_programs = [flag for program in described for flag in program["flags"]]
    values = {"task_name": {*TASK_NAMES}, "evaluate_every": {"end"}}
    for flag in flags_of_programs:
        values.setdefault(flag["name"], set()).update(flag["values"] or ())
    conditions = [condition for flag in flags_of_programs for condition in flag["needs"]]
    assert len(conditions) > 50
    for names, expected, *_ in conditions:
        assert values.keys() >= {*names} and values[names[0]] >= {*expected}, names
    kinds = (DistributionConfig, FinetuningConfig, PretrainingConfig, DataOptions, VocabularyOptions)
    roles = {role for kind in kinds for field in settings.flags_of(kind).values() for role in field.roles}
    modules = {role.program for role in roles if isinstance(role, settings.AbsentFrom)}
    assert "run_squad" in modules and modules <= {program["program"] for program in described}


def test_conditions_are_sentences_in_help():
    conditions = [settings.only_with("a"), settings.only_with("b", values=("x", "y")), settings.not_with("c", "d")]
    conditions.append(settings.not_with("e", values=("1", "2"), group="below 3"))
    assert (
        settings.help_text(conditions, "abce") == "Used only with --a and --b=x or y. Not used with --c or --e below 3."
    )


def test_defaults_are_set_except_for_given_flags():
    flags.DEFINE_float("rate_of_a_test", 5e-5, "A rate.")
    flags.FLAGS.mark_as_parsed()
    try:
        program.set_defaults({"rate_of_a_test": 1e-3})
        assert flags.FLAGS.rate_of_a_test == 1e-3
        with flagsaver.as_parsed(rate_of_a_test="1e-4"):
            program.set_defaults({"rate_of_a_test": 2e-3})
            assert flags.FLAGS.rate_of_a_test == 1e-4
    finally:
        delattr(flags.FLAGS, "rate_of_a_test")
