"""The layers of the code: imports go down only, and the text-only modules stay free of TensorFlow."""

import ast
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Lowest first. A module may import from its own layer and from those before it.
LAYERS = [
    names.split()
    for names in (
        "files traced_text vocabulary program",
        "config tokenization packing metrics example_format masking_policy tables conll feature_sets reporting",
        "parallel sentence_features",
        "distribution record_shards input_pipeline dynamic_masking elementwise normalization",
        "layers encoder heads optimization",
        "checkpoint_names checkpoint_saver checkpoints run_directory pretrained features fill_mask",
        "bilstm training_step batch_evaluation training",
        "finetuning_models finetuning_task feature_tagger pretraining pretraining_run",
        "finetuning sentence_task convert_checkpoint",
        "serving",
        "finetuning_recipes finetuning_reports finetuning_selection finetuning_trials finetuning_workflow",
        "program_flags",
        "tasks task_table",
        "exporting export predict",
    )
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
WITHOUT_TENSORFLOW = [name for names in LAYERS[:3] for name in names]


def imports(path, top_level_only=False):
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(folder):
    return sorted(p for p in (ROOT / folder).rglob("*.py") if p.name != "__init__.py")


def layer_of(path):
    return path.relative_to(ROOT / "bert_tf").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules("bert_tf"), ids=lambda path: path.stem)
def test_imports_go_down(path):
    assert layer_of(path) in RANK, f"{path.name} has no place in the layers"
    for name in imports(path):
        parts = name.split(".")
        assert parts[0] != "data_prep", f"{path.name} imports {name}"
        if parts[0] == "bert_tf" and len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= RANK[layer_of(path)], f"{path.name} imports {name} from a layer above"


@pytest.mark.parametrize("path", modules("bert_tf/tasks"), ids=lambda path: path.stem)
def test_tasks_do_not_import_one_another(path):
    family = path.stem.split("_")[0]
    others = [name.split(".")[2] for name in imports(path) if name.startswith("bert_tf.tasks.")]
    assert all(other.split("_")[0] == family for other in others)


@pytest.mark.parametrize("path", modules("data_prep"), ids=lambda path: path.stem)
def test_data_preparation_stands_on_the_text_modules(path):
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "bert_tf" and len(parts) > 1 and parts[1] in RANK:
            assert parts[1] in WITHOUT_TENSORFLOW, f"{path.name} imports {name}"


@pytest.mark.parametrize("name", [n for n in WITHOUT_TENSORFLOW if (ROOT / "bert_tf" / f"{n}.py").exists()])
def test_text_modules_do_not_import_tensorflow(name):
    assert not any(
        found.startswith("tensorflow") for found in imports(ROOT / f"bert_tf/{name}.py", top_level_only=True)
    )


def test_text_modules_load_without_tensorflow():
    names = [n for n in WITHOUT_TENSORFLOW if (ROOT / "bert_tf" / f"{n}.py").exists()]
    code = f"import sys; [__import__('bert_tf.' + n) for n in {names!r}]; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_flags_are_read_in_entry_scripts_only():
    for path in modules("bert_tf"):
        if path.name not in ("program.py", "program_flags.py"):
            assert "flags.FLAGS" not in path.read_text(), path.name
