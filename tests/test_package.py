"""Tests the wheel: its content, and that it works outside the checkout with only the required dependencies."""

import ast
import importlib.metadata
import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bert_tf
from bert_tf.distribution import strategies
from bert_tf.runtime import lazy_imports
from bert_tf.runtime.files import InputError
from tests import command_server, programs
from tests.conftest import ROOT
from tests.programs import PIECES
from tests.test_architecture import imports, name_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = sorted([*ROOT.glob("*.py"), *ROOT.glob("bert_tf/**/*.py"), *ROOT.glob("data_prep/**/*.py")])
PROGRAMS = {name_of(path): path for path in SOURCES if '__name__ == "__main__"' in path.read_text()}
TEXT = "a bad cab\na big bag\nhe had a bead\n\nbe a cad\nhide a face\ndig a ditch\n"

# Imports every module except the given ones, which define flags or need Apache Beam. Prints the missing packages.
IMPORT_ALL = """
import importlib, pkgutil, sys
import bert_tf, data_prep
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.lazy_imports import OPTIONAL, require

for package in (bert_tf, data_prep):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if found.name not in sys.argv:
            importlib.import_module(found.name)
for module in OPTIONAL:
    try:
        require(module, "This test")
    except InputError as error:
        print(error)
"""
# Uses layers and settings, and compares the state of the process before and after.
AS_A_GUEST = """
import os, sys
import keras, tensorflow as tf
from tensorflow.python.framework import ops

def state():
    return dict(os.environ), tf.get_logger().level, type(ops.gradient_registry)

before = state()
import bert_tf
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.serving.export_config import ExportConfig
from bert_tf.training.settings import TrainingConfig

BertEncoder(BertConfig.named("tiny", vocab_size=9))(tf.constant([[1, 2]]))
TrainingConfig(report_to="mlflow,wandb")
ExportConfig(onnx_int8=True)
assert state() == before
assert not {"mlflow", "wandb", "tf2onnx", "onnxruntime"} & sys.modules.keys()
"""
ORIGIN = """
import bert_tf
from bert_tf.checkpoints import run_record
print([bert_tf.__file__, bert_tf.__version__, run_record.git_commit()])
"""


def pins(name):
    """Returns the exact versions in a requirements file, without included files."""
    lines = (ROOT / name).read_text().splitlines()
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}


def outside(target, *command):
    """Runs a command outside the checkout, and returns its standard output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    environment |= {"PYTHONPATH": str(target), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=target.parent, env=environment, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Returns a directory with the installed wheel, inside the checkout of another project."""
    directory = tmp_path_factory.mktemp("package")
    not_copied = shutil.ignore_patterns(".*", "build", "dist", "runs", "golden", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, directory / "source", ignore=not_copied)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "wheel", *offline, "--no-build-isolation", f"--wheel-dir={directory}", str(directory / "source")],
        check=True,
    )
    (wheel,) = directory.glob("*.whl")
    subprocess.run([*pip, "install", *offline, f"--target={directory / 'site'}", str(wheel)], check=True)
    git = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=another project"], check=True)
    return directory / "site"


@pytest.fixture(scope="module")
def minimal():
    """Returns a command server whose programs can't import optional packages."""
    server = command_server.CommandServer(*lazy_imports.OPTIONAL)
    return lambda: server


def test_the_wheel_contains_the_packages_and_the_programs_only(target):
    (distribution,) = importlib.metadata.distributions(path=[str(target)])
    assert distribution.version == bert_tf.__version__
    files = {str(file) for file in distribution.files}
    modules = {file for file in files if file.endswith(".py")}
    assert {file.partition("/")[0] for file in modules} == {
        *("bert_tf", "data_prep"),
        *(f"{name}.py" for name in PROGRAMS if "." not in name),
    }
    expected = {str(path.relative_to(ROOT)) for path in SOURCES}
    assert {*expected, "bert_tf/py.typed", "data_prep/py.typed"} <= files


def test_every_program_is_a_command_that_shows_what_it_does_and_its_flags(minimal):
    assert sorted(PROJECT["scripts"].values()) == sorted(f"{name}:cli" for name in PROGRAMS)
    for name, path in PROGRAMS.items():
        tree = ast.parse(path.read_text())
        shown = programs.run("-m", name, "--help", expect=1, server=minimal)
        assert shown.strip().startswith(ast.get_docstring(tree).partition("\n")[0]), name
        keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "required"]
        required = [ast.literal_eval(node.value) for node in keywords if isinstance(node.value, ast.List)]
        for flag in required[0] if required else ["vocab_file"]:
            assert f"  --{flag}: " in shown, name


def test_modules_need_no_optional_packages_which_are_asked_for_by_name(minimal):
    printed = programs.run("-c", IMPORT_ALL, *PROGRAMS, "data_prep.beam", server=minimal)
    for package in lazy_imports.OPTIONAL.values():
        assert f"This test: {package} is not installed. Install it with `pip install {package}`.\n" in printed


def test_an_optional_package_is_imported_without_its_warnings_and_its_faults_are_not_hidden(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.syspath_prepend(tmp_path)
    for name, code in (("chatty", "import logging\nlogging.warning('a part is missing')"), ("bad", "import nowhere")):
        (tmp_path / f"a_{name}_package.py").write_text(code)
        monkeypatch.setitem(lazy_imports.OPTIONAL, f"a_{name}_package", name)
    assert lazy_imports.require("a_chatty_package", "This test").__name__ == "a_chatty_package"
    logging.warning("of another one")
    assert [record.message for record in caplog.records] == ["of another one"]
    with pytest.raises(ModuleNotFoundError, match="nowhere") as raised:
        lazy_imports.require("a_bad_package", "This test")
    assert not isinstance(raised.value, InputError)


def test_layers_and_settings_do_not_change_the_process(tmp_path):
    for name in ("mlflow", "wandb", "tf2onnx", "onnxruntime"):
        (tmp_path / f"{name}.py").touch()
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    subprocess.run([sys.executable, "-c", AS_A_GUEST], env=variables, check=True)


@pytest.mark.parametrize("module", ["bert_tf.api", "bert_tf.encoder", "bert_tf.model.heads", "bert_tf.runtime.program"])
@pytest.mark.parametrize("is_in_file", [False, True])
def test_another_backend_of_keras_is_an_error_except_in_programs(module, is_in_file, tmp_path):
    command = [sys.executable, "-c", f"import {module}, os; print(os.environ['KERAS_BACKEND'])"]
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    others = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    variables = others | ({"KERAS_HOME": str(tmp_path)} if is_in_file else {"KERAS_BACKEND": "torch"})
    done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=ROOT)
    if "program" in module or ("api" in module and is_in_file):  # these modules set the variable
        assert done.stdout == "tensorflow\n"
    else:
        assert "InputError: Keras has the backend 'torch'" in done.stderr


def test_commands_work_in_any_directory(target):
    directory = target.parent
    (directory / "text.txt").write_text(TEXT)
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    sizes = ("--max_seq_length=32", "--max_predictions_per_seq=3", "--num_workers=1")
    files = ("--input_file=text.txt", "--vocab_file=vocab.txt", "--output_file=out.tfrecord")
    outside(target, str(target / "bin" / "bert-data"), *files, *sizes)
    found = outside(target, sys.executable, "-c", ORIGIN)
    assert ast.literal_eval(found) == [f"{target}/bert_tf/__init__.py", bert_tf.__version__, ""]
    shown = programs.run("-m", "data_prep.inspect", directory / "out.tfrecord", "--num_examples=1")
    assert re.search(r"out\.tfrecord, example 1: \d+ tokens, \d+ to predict; B ", shown)


def test_all_imports_are_declared_and_optional_ones_are_lazy():
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    installed = importlib.metadata.packages_distributions()
    for path in SOURCES:
        for module in {name.partition(".")[0] for name in imports(path)} - sys.stdlib_module_names:
            packages = {canonicalize_name(name) for name in installed.get(module, [])}
            # beam_pipeline.py checks that Beam is installed.
            of_beam = module == "apache_beam" and path.parent.name == "data_prep"
            of_old_environment = path.name == "run_old_model.py"  # runs in the environment of --verify_python
            is_known = declared & packages or module in ("bert_tf", "data_prep") or of_beam or of_old_environment
            assert is_known, f"{path} imports {module}"
    offered = {Requirement(line).name for lines in PROJECT["optional-dependencies"].values() for line in lines}
    assert offered >= set(lazy_imports.OPTIONAL.values())


def test_pinned_versions_are_allowed_and_the_same_in_all_files():
    user = pins("requirements.txt") | pins("requirements-common.txt")
    more = [pins(f"requirements{kind}.txt") for kind in ("-dev", "-beam")]
    pinned = dict(user)
    for others in more:
        assert not user.keys() & others.keys()
        assert all(pinned.get(name, version) == version for name, version in others.items())
        pinned |= others
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert requirement.specifier.contains(user[canonicalize_name(requirement.name)]), str(requirement)
    optional = PROJECT["optional-dependencies"]
    for requirement in map(Requirement, [*optional["beam"], *optional["squad"], *optional["test"], *optional["dev"]]):
        if requirement.name != "bert-tf":
            assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), str(requirement)


def test_builds_of_tensorflow_have_one_version():
    cpu, gpu, tpu = (pins(f"requirements{kind}.txt") for kind in ("", "-gpu", "-tpu"))
    assert cpu["tensorflow"] == gpu.pop("tensorflow[and-cuda]") == tpu["tensorflow-tpu"]
    assert f"libtpu=={tpu['libtpu']}" in strategies._TPU_PACKAGES
    if importlib.metadata.version("tensorflow") != cpu["tensorflow"]:
        pytest.skip("requirements-gpu.txt is for another version of TensorFlow.")
    cuda = {canonicalize_name(r.name): r for r in map(Requirement, importlib.metadata.requires("tensorflow"))}
    assert gpu.keys() == {name for name in cuda if name.startswith("nvidia-")}
    assert all(cuda[name].specifier.contains(version) for name, version in gpu.items())
