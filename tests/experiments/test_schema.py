"""The files of tables and scales: what is shipped can be read, and what is wrong is named."""

import itertools
import pathlib
import tokenize

import pytest

from bert_tf.runtime.files import InputError
from experiments import schema
from experiments.assembly import Assembly
from tests import programs
from tests.conftest import ROOT

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
    """Every table at every scale."""
    for scale in schema.SCALES:
        for name in schema.NAMES:
            yield name, scale, Assembly(schema.load_experiment(name, scale), schema.load_scale(scale), "data")


def test_there_is_a_file_for_each_table_and_figure():
    assert set(schema.NAMES) == {"figure5", "recipes", *(f"table{i}" for i in range(1, 9))}


def test_every_flag_of_every_run_exists():
    """One command for each program, with all flags that any table gives it at any scale, is parsed by the program."""
    given: dict[str, dict[str, str]] = {}
    for _, _, assembly in assemblies():
        for cell in assembly.cells:
            pieces = [cell.piece]
            for piece in pieces:
                pieces += piece.needs
                assert "feature_layers" not in piece.flags or "init_checkpoint" in piece.flags, cell.name
                module, *flags = piece.command("pieces")
                given.setdefault(module, {}).update((flag.partition("=")[0], flag) for flag in flags)
    assert given.keys() >= {"run_squad", "run_classifier", "run_pretraining", "data_prep.build_vocab"}
    for module, flags in given.items():
        programs.run("-m", module, *flags.values(), environment={"PARSE_ONLY": "1"})


def test_every_row_has_a_model_without_pretraining_beside_it():
    for name, _, assembly in assemblies():
        if any(cell.piece.kind != "pretraining" for cell in assembly.cells):
            assert "without pre-training" in {cell.row.name for cell in assembly.cells}, name


def test_the_scales_of_a_table_replace_keys(tmp_path):
    text = MINIMAL + 'at.tiny = { seeds = [7], title = "small" }\n[columns.F1]\ntask = "MRPC"\nmetric = "f1"\n'
    text += 'at.tiny.metric = "eval_accuracy"\n'
    small, other = read(tmp_path, text, "tiny"), read(tmp_path, text)
    assert (small.title, small.seeds, small.columns["F1"].metric) == ("small", [7], "eval_accuracy")
    assert (other.title, other.seeds, other.columns["F1"].metric) == ("Table 9", [], "f1")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("seed = [1]", "table9.toml: .*`seed`"),
        ('seeds = "1"', "table9.toml, at seeds: .*array"),
        ("seeds = [true]", r"table9.toml, at seeds\[0\]: .*int"),
        ("at.huge = {}", r"table9.toml: at, at .*: .*'huge'"),
        ("[columns.F1]\ntask = 'QNLI'", r"table9.toml, at columns\[...\]: .*`metric`"),
        (
            "[columns.F1]\ntask = 'QNLI'\nmetric = 'f1'\ntaks = 1",
            r"table9.toml, at columns\[...\]: .*`taks`",
        ),
        ("[[claims]]\ntext='x'\nbetter='a'\nworse='b'\ncolumn='EM'", r"table9.toml: x: no column 'EM'"),
        ("title = ", "not valid TOML"),
        ('at = "smoke"', "table9.toml: at: .*object"),
        ('at.smoke = "x"', r"table9.toml: at, at \[...\]: .*object"),
        ("[[claims]]\ntext='x'\nbetter='A'\nworse='a'\ncolumn='QNLI'", "x: no row 'A'. There are a"),
        ("[columns.F1]\ntask = 'Qnli'\nmetric = 'f1'", "F1: no task 'Qnli'. There are .*QNLI"),
        ("\udcff", "line 5: byte 0xff is not UTF-8"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, MINIMAL + wrong)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{ name = "b", pretrainin = false }', r"table9.toml, at rows\[0\]: .*`pretrainin`"),
        ('{ name = "b", paper = { EM = 1 } }', "table9.toml: b: no column 'EM'"),
        ('{ name = "b" }, { name = "b" }', "two rows have the same name"),
        ('{ name = "b", tasks = { Qnli = "QNLI" } }', "b: no column of the task 'Qnli'. There are QNLI"),
        ('{ name = "b", tasks = { QNLI = "Qnli" } }', "b: no task 'Qnli'"),
        ('{ name = "b", pretraining = true }', "b: pretraining"),
        ('{ name = "b", checkpoint = 0 }', "b: .*checkpoint"),
        ('{ name = "b", checkpoint = 1.5 }', "b: .*checkpoint"),
        ('{ name = "b", data.max_seq_length = "x" }', "b, at max_seq_length: .*int"),
        ('{ name = "b", pretraining.num_train_steps = "x" }', "b, at num_train_steps: .*int"),
        ('{ name = "b", finetuning.num_train_epochs = "x" }', "b, at num_train_epochs: .*float"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, MINIMAL.replace('{ name = "a", paper = { QNLI = 1 } }', row))


def test_a_table_without_rows_is_named(tmp_path):
    empty = read(tmp_path, MINIMAL.replace('{ name = "a", paper = { QNLI = 1 } }', ""))
    with pytest.raises(InputError, match="Table 9: this scale has no row or no column of it"):
        Assembly(empty, schema.load_scale("smoke"), "data")


def test_an_unknown_table_is_answered_with_those_there_are():
    with pytest.raises(InputError, match=r"There is no experiment 'table99'. There are figure5, recipes, table1"):
        schema.load_experiment("table99", "smoke")


def lines_of_code(path: pathlib.Path) -> int:
    """The number of lines that hold more than comments and docstrings."""
    with tokenize.open(path) as reader:
        tokens = list(tokenize.generate_tokens(reader.readline))
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}
    statements = [(before, token) for before, token in itertools.pairwise(tokens) if token.type not in layout]
    # A docstring is a text with which a line begins.
    code = [token for before, token in statements if token.type != tokenize.STRING or before.type not in layout]
    return len({line for token in code for line in range(token.start[0], token.end[0] + 1)})


def test_the_harness_is_small():
    """It runs programs, so it has little to do."""
    assert sum(map(lines_of_code, (ROOT / "experiments").glob("*.py"))) < 600
