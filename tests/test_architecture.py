"""Checks the layers: a module imports only from its own and lower layers, and text modules need no TensorFlow."""

import ast
import collections
import functools
import graphlib
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Directories and modules of bert_tf, the lowest layer first. A module may import from its own layer and from lower
# ones.
ORDER = (
    "runtime < distribution < text sequences data_report < hf_config < config < model < encoder optimization < "
    "checkpoints < features sentence_vectors training < pretraining finetuning < serving < tasks < graphs < "
    "program_flags < export predict fill_mask convert_checkpoint model_card verification < api"
)
LAYERS = [names.split() for names in ORDER.split(" < ")]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PROGRAMS = ("export", "predict", "fill_mask", "convert_checkpoint")
# The modules that data preparation may import. It runs in many processes, and TensorFlow would take 0.5 GB in each
# process.
USED_BY_DATA_PREPARATION = {
    "runtime": (
        "settings errors files json_files path_checks lazy_imports messages program signals parallel reporting dry_run"
    ),
    "runtime.storage": "locks first_bytes output_checks",
    "text": (
        "added_tokens base_vocabulary characters hf_tokenizer memo splitting tokenizer_config tokenizers traced_text "
        "vocabulary"
    ),
    "data_report": "examples findings rows splits texts",
    "sequences": "packing masking random_streams example_format",
}
WITHOUT_TENSORFLOW = {
    "runtime": "differences",
    "distribution": "devices",
    "optimization": "settings",
    "training": "settings",
    "pretraining": "pretraining_config recipes",
    "finetuning": "feature_sets finetuning_config",
    "serving": "answering export_config line_predictions lite_model",
    "tasks": "tables metrics data_config own_tasks task_names",
    "tasks.sentences": "examples",
    "tasks.tagging": "conll",
    "tasks.squad": "rules",
}


def text_modules(directory):
    """Returns the modules of bert_tf that may be imported in a directory that needs no TensorFlow."""
    tables = [USED_BY_DATA_PREPARATION, *([WITHOUT_TENSORFLOW] if directory != "data_prep" else [])]
    inside = {f"{package}.{name}" for table in tables for package in table for name in table[package].split()}
    return {"config", "hf_config", "text", "program_flags", *inside}


@functools.cache
def imports(path):
    """Returns the full names of the modules and objects that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = [
        f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    return found + [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]


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
    """Yields the project files that a file imports, including imports in functions and for type checkers.

    An import of a module of another package also imports the package.
    """
    for name in imports(path):
        candidate = ROOT.joinpath(*name.split("."))
        # The last part may be a class or a function.
        for place in (candidate, candidate.parent):
            found = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()]
            if found:
                yield found[0]
                if found[0].parent not in (path.parent, *path.parents):
                    yield found[0].parent / "__init__.py"
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
            other_task = parts[:2] == ["bert_tf", "tasks"] and parts[2] in ("squad", "tagging", "sentences")
            assert not other_task or parts[2] == directory, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules("data_prep") + modules("experiments"), ids=name_of)
def test_data_preparation_and_experiments_import_only_text_modules(path):
    allowed = text_modules(path.relative_to(ROOT).parts[0])
    for name in imports(path):
        if name.startswith("bert_tf."):
            imported = name.removeprefix("bert_tf.")
            assert {imported, imported.rpartition(".")[0]} & allowed, name


def test_text_modules_load_and_a_vocabulary_is_learnt_without_tensorflow():
    learn = "from data_prep.corpus.wordpiece_learner import learn_vocabulary; learn_vocabulary({'ab': 9}, 6, ['[UNK]'])"
    code = f"import sys; [__import__(n) for n in sys.argv[1:]]; {learn}; assert 'tensorflow' not in sys.modules"
    names = [f"bert_tf.{name}" for name in sorted(text_modules("experiments"))]
    subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, check=True)


def test_programs_that_serve_import_keras_without_its_optional_packages():
    calls = "lazy_imports.prepare_tensorflow(); lazy_imports.import_tensorflow_for_serving()"
    names = "{'keras', 'matplotlib', 'sklearn'} & sys.modules.keys() == {'keras'}"
    code = f"import sys; from bert_tf.runtime import lazy_imports; {calls}; assert {names}; import sklearn"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_flags_are_defined_and_read_in_programs_only():
    allowed = {ROOT / "bert_tf" / f"{name}.py" for name in ("runtime/program", *PROGRAMS)}
    for path in modules("bert_tf"):
        if path not in allowed and layer_of(path) != "program_flags":
            assert "absl.flags" not in set(imports(path)), path.name


def test_directories_have_at_most_14_modules():
    counts = collections.Counter(path.parent for path in modules("bert_tf") + modules("data_prep"))
    assert {path for path, count in counts.items() if count > 14} == set()
