"""Checks the layers: a module imports only from its own and lower layers, and text modules need no TensorFlow."""

import ast
import graphlib
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Directories and modules of bert_tf, the lowest layer first. A module may import from its own layer and from lower
# ones.
LAYERS = [
    names.split()
    for names in (
        "runtime",
        "distribution",
        "text",
        "config",
        "model",
        "encoder optimization",
        "checkpoints",
        "features sentence_vectors training",
        "pretraining finetuning",
        "serving",
        "tasks",
        "program_flags",
        "export predict fill_mask convert_checkpoint verification",
        "api",
    )
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PROGRAMS = ("export", "predict", "fill_mask", "convert_checkpoint")
# The modules that data preparation may import. It runs in many processes, and TensorFlow would take 0.5 GB in each
# process.
USED_BY_DATA_PREPARATION = [
    *("config", "text", "program_flags", "runtime.settings"),
    *(
        f"runtime.{name}"
        for name in (
            "errors",
            "locks",
            "files",
            "first_bytes",
            "output_checks",
            "json_files",
            "lazy_imports",
            "messages",
            "program",
            "signals",
            "parallel",
            "reporting",
        )
    ),
    *(
        f"text.{name}"
        for name in (
            *("characters", "memo", "splitting", "tokenizer_config", "tokenizers", "traced_text", "vocabulary"),
            *("packing", "masking", "random_streams", "example_format"),
        )
    ),
]
WITHOUT_TENSORFLOW = [
    *USED_BY_DATA_PREPARATION,
    *(
        "finetuning.feature_sets",
        "tasks.tables",
        "tasks.metrics",
        "tasks.examples",
        "tasks.tagging.conll",
        "tasks.data_config",
        "tasks.squad.rules",
        "finetuning.finetuning_config",
        "pretraining.pretraining_config",
        "pretraining.recipes",
    ),
    *(f"{directory}.settings" for directory in ("optimization", "training")),
    *(f"serving.{name}" for name in ("answering", "export_config", "line_predictions", "lite_model")),
    "distribution.devices",
    "runtime.differences",
    "program_flags",
]


def imports(path, top_level_only=False):
    """Yields the full names of the modules and objects that a file imports."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(directory):
    return sorted(p for p in (ROOT / directory).rglob("*.py") if p.name != "__init__.py")


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def layer_of(path):
    return path.relative_to(ROOT / "bert_tf").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules("bert_tf"), ids=name_of)
def test_no_module_imports_from_a_higher_layer(path):
    assert layer_of(path) in RANK, f"{path.name} has no place in the layers"
    for name in imports(path):
        parts = name.split(".")
        assert parts[0] != "data_prep", f"{path.name} imports {name}"
        if parts[0] == "bert_tf":
            assert len(parts) > 1, f"{path.name} imports the whole package"
            assert RANK[parts[1]] <= RANK[layer_of(path)], f"{path.name} imports {name} from a layer above"


def imported_modules(path):
    """Yields the project files that a file imports, including imports in functions and for type checkers."""
    for name in imports(path):
        candidate = ROOT.joinpath(*name.split("."))
        # The last part may be a class or a function.
        for place in (candidate, candidate.parent):
            found = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()]
            if found:
                yield found[0]
                break


def test_no_modules_import_one_another():
    directories = ("bert_tf", "data_prep", "experiments")
    files = [path for directory in directories for path in (ROOT / directory).rglob("*.py")]
    # `prepare` raises a CycleError that names the modules.
    graphlib.TopologicalSorter({path: set(imported_modules(path)) - {path} for path in files}).prepare()


def test_every_module_has_a_layer():
    found = {layer_of(path) for path in modules("bert_tf")}
    assert found == set(RANK)


@pytest.mark.parametrize("directory", ["squad", "tagging"])
def test_tasks_do_not_import_one_another(directory):
    for path in modules(f"bert_tf/tasks/{directory}"):
        for name in imports(path):
            parts = name.split(".")
            other_task = parts[:2] == ["bert_tf", "tasks"] and parts[2] in ("squad", "tagging", "glue", "text")
            assert not other_task or parts[2] == directory, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules("data_prep") + modules("experiments"), ids=name_of)
def test_data_preparation_and_experiments_import_only_text_modules(path):
    text_modules = USED_BY_DATA_PREPARATION if ROOT / "data_prep" in path.parents else WITHOUT_TENSORFLOW
    for name in imports(path):
        if name.startswith("bert_tf."):
            imported = name.removeprefix("bert_tf.")
            assert {imported, imported.rpartition(".")[0]} & {*text_modules}, name


def check_loads_without_tensorflow(*names):
    code = "import sys; [__import__(n) for n in sys.argv[1:]]; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, check=True)


def test_text_modules_load_without_tensorflow():
    check_loads_without_tensorflow(*(f"bert_tf.{name}" for name in WITHOUT_TENSORFLOW))


def test_a_vocabulary_is_learnt_without_tensorflow():
    learn = "from data_prep.corpus.wordpiece_learner import learn_vocabulary; learn_vocabulary({'ab': 9}, 6, ['[UNK]'])"
    code = f"import sys; {learn}; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


IMPORT_EACH = """
import os, sys
import absl.flags, msgspec, numpy

for name in sys.argv[1:]:
    if os.fork() == 0:  # because programs define flags of the same names
        __import__(name)
        os._exit("tensorflow" in sys.modules)
    assert os.wait()[1] == 0, name
"""


def test_programs_answer_help_and_wrong_flags_without_tensorflow():
    names = [path.stem for path in ROOT.glob("*.py")] + [f"bert_tf.{name}" for name in PROGRAMS]
    subprocess.run([sys.executable, "-c", IMPORT_EACH, *names], cwd=ROOT, check=True)


def test_flags_are_defined_and_read_in_programs_only():
    allowed = {ROOT / "bert_tf" / f"{name}.py" for name in ("runtime/program", *PROGRAMS)}
    for path in modules("bert_tf"):
        if path not in allowed and layer_of(path) != "program_flags":
            assert "absl.flags" not in set(imports(path)), path.name
