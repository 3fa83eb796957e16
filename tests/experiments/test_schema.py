"""Tests the files of tables and scales: the project's files are valid, and errors are reported."""

import pathlib
import re

import pytest

from bert_tf.runtime.files import InputError
from experiments import schema
from experiments.assembly import Assembly
from experiments.runs import in_order
from tests import programs
from tests.conftest import assert_refused

MINIMAL = """
title = "Table 9"
columns.QNLI = { task = "QNLI", metric = "eval_accuracy" }
rows = [{ name = "a", paper = { QNLI = 1 } }]
"""


def read(tmp_path: pathlib.Path, text: str, scale: str = "smoke"):
    path = tmp_path / "table9.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return schema.load_experiment(str(path), scale)


def assemblies():
    """Returns every table at every scale."""
    for scale in schema.SCALES:
        for name in schema.NAMES:
            yield name, scale, Assembly(schema.load_experiment(name, scale), schema.load_scale(scale), "data", "W")


def test_there_is_a_file_for_each_table_and_figure():
    assert set(schema.NAMES) == {"figure5", "recipes", *(f"table{i}" for i in range(1, 9))}


def test_every_flag_of_every_run_exists():
    """Each program parses a command with all flags that any table passes to it at any scale."""
    given: dict[str, dict[str, str]] = {}
    for _, _, assembly in assemblies():
        for cell in assembly.cells:
            for run in in_order([cell.run]):
                assert "feature_layers" not in run.flags or "init_checkpoint" in run.flags, run
                of_module = given.setdefault(run.module, {})
                of_module.update((flag.partition("=")[0], flag) for flag in run.arguments)
    assert given.keys() >= {"run_squad", "run_classifier", "run_pretraining", "data_prep.build_vocab"}
    for module, flags in given.items():
        programs.run("-m", module, *flags.values(), environment={"PARSE_ONLY": "1"})


@pytest.mark.parametrize("module", schema.PROGRAMS)
def test_every_flag_of_a_table_is_a_flag_of_its_program(module):
    shown = programs.run("-m", module, "--help", expect=1)
    assert [flag for flag in schema.PROGRAMS[module].flags if not re.search(rf"--(\[no\])?{flag}:", shown)] == []


def test_every_row_has_a_model_without_pretraining_beside_it():
    for name, _, assembly in assemblies():
        if any(cell.run.kind != "pretraining" for cell in assembly.cells):
            assert "without pre-training" in {cell.row.name for cell in assembly.cells}, name


def test_the_scales_of_a_table_replace_keys(tmp_path):
    text = MINIMAL + 'at.tiny = { seeds = [7], title = "small" }\n[columns.F1]\ntask = "MRPC"\nmetric = "f1"\n'
    text += 'at.tiny.metric = "eval_accuracy"\n'
    small, other = read(tmp_path, text, "tiny"), read(tmp_path, text)
    assert (small.title, small.seeds, small.columns["F1"].metric) == ("small", [7], "eval_accuracy")
    assert (other.title, other.seeds, other.columns["F1"].metric) == ("Table 9", [], "f1")


ROW = '{ name = "a", paper = { QNLI = 1 } }'


@pytest.mark.parametrize(
    ("old", "new", "place", "found"),
    [
        ("", "seed = [1]", "", "seed"),
        ("", 'seeds = "1"', "seeds", "array"),
        ("", "seeds = [true]", "seeds[...]", "int"),
        ("", "at.huge = {}", ": at", "huge"),
        ("", 'at = "smoke"', ": at", "object"),
        ("", "[columns.F1]\ntask = 'QNLI'", "columns", "metric"),
        ("", "[[claims]]\ntext = 'x'", "claims", "better"),
        ("", "title = ", "TOML", "Invalid value"),
        ("", "\udcff", "line 5", "UTF-8"),
        (ROW, '{ name = "b", pretrainin = false }', "rows[...]", "pretrainin"),
        (ROW, '{ name = "b", paper = { EM = 1 } }', "row 'b'", "'EM'"),
        (ROW, '{ name = "b", tasks = { Qnli = "QNLI" } }', "row 'b'", "'Qnli'"),
        (ROW, '{ name = "b" }, { name = "b" }', "row 'b'", "repeated name"),
        (ROW, '{ name = "b", pretraining = true }', "row 'b'", "pretraining"),
        (ROW, '{ name = "b", checkpoint = 1.5 }', "rows[...].checkpoint", "1.0"),
        (ROW, '{ name = "b", data.max_seq_length = [1] }', "rows[...].data", "array"),
        (ROW, '{ name = "b", data.max_seq_length = "x" }', "row 'b'.data.max_seq_length", "int"),
        (ROW, '{ name = "b", data.masking_policy = "1,0,x" }', "row 'b'.data.masking_policy, at [...]", "float"),
        (ROW, '{ name = "b", pretraining.lerning_rate = 1 }', "row 'b'.pretraining", "lerning_rate"),
        (ROW, '{ name = "b", at.paper.pretraining.lerning_rate = 1 }', "row 'b'.pretraining", "lerning_rate"),
        (ROW, '{ name = "b", pretraining.do_lower_case = true }', "row 'b'.pretraining", "do_lower_case"),
        (ROW, '{ name = "b", finetuning.learning_rate = 0 }', "row 'b'.finetuning.learning_rate", "> 0.0"),
        (ROW, '{ name = "b", model.size = "huge" }', "row 'b'.model.size", "large"),
        ("", "[columns.F1]\ntask = 'QNLI'\nmetric = 'f1'\nfinetuning.a = 1", "columns.F1.finetuning", "'a'"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, old, new, place, found):
    with pytest.raises(InputError, match=r"table9\.toml") as raised:
        read(tmp_path, MINIMAL.replace(old, new) if old else MINIMAL + new)
    message = re.sub(r"\[\d+\]", "[...]", str(raised.value))
    assert place in message and found in message


def test_a_table_without_rows_is_named(tmp_path):
    empty = read(tmp_path, MINIMAL.replace(ROW, ""))
    assert_refused("Table 9", Assembly, empty, schema.load_scale("smoke"), "data", "W")


def test_an_unknown_table_is_answered_with_those_there_are():
    assert_refused(r"'table99'\. Use one of figure5, recipes, table1", schema.load_experiment, "table99", "smoke")
