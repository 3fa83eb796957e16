"""Runs every command and Python block of the documentation on small data; see `documentation.small_data`."""

import base64
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from docs.hooks import flowcharts
from examples import execute_notebooks
from tests import command_server
from tests.documentation import docstrings, messages, outputs, pages, small_data
from tests.documentation.pages import PAGES, Block

pytestmark = pytest.mark.documentation

# Blocks that aren't run: the page, a text that only this block of the page has, and the reason. The programs and flags
# in these blocks must exist.
NOT_RUN: list[tuple[str, str, str]] = [
    ("README.md", "make quickstart", "takes minutes, and installs"),
    ("README.md", "pip install", "installs"),
    ("CONTRIBUTING.md", "make quickstart", "installs, and runs all tests"),
    ("CONTRIBUTING.md", "mutmut", "installs, and takes minutes"),
    ("CONTRIBUTING.md", "python -m pytest", "runs other tests"),
    ("CONTRIBUTING.md", "benchmarks.train_step", "takes minutes"),
    ("docs/index.md", "make quickstart", "takes minutes, and installs"),
    ("docs/start/install.md", "pip install -r", "installs"),
    ("docs/start/install.md", "pip install .\n", "installs"),
    ("docs/start/downloads.md", "unzip uncased", "needs network access"),
    ("docs/start/downloads.md", "hf download", "needs network access"),
    ("docs/start/downloads.md", "unzip $name.zip", "needs network access"),
    ("docs/start/downloads.md", "wget -P squad", "needs network access"),
    ("docs/start/downloads.md", "make notebook-files", "needs the package registry"),
    ("docs/howto/wikipedia.md", "hf download", "needs network access"),
    ("docs/howto/wikipedia.md", "dumps.wikimedia.org", "needs network access"),
    ("docs/howto/wikipedia.md", "--input_file=wikipedia ", "needs Wikipedia"),
    ("docs/howto/wikipedia.md", "--recipe=bert_base", "needs Wikipedia"),
    ("docs/start/quickstart.md", "make quickstart", "takes minutes, and installs"),
    ("docs/start/quickstart.md", "examples.quickstart", "is what `make quickstart` runs, step by step"),
    ("docs/start/quickstart.md", "bin/activate", "needs the virtual environment"),
    ("docs/migrate/tf-model-h5.md", "python -m venv", "installs"),
    ("docs/migrate/pytorch-model-bin.md", "python -m venv", "installs"),
    ("docs/migrate/keras-hub.md", "python -m venv", "installs"),
    ("docs/howto/pretraining-data.md", "--runner=FlinkRunner", "needs a Flink cluster"),
    ("docs/howto/distillation.md", "make notebook-files", "downloads"),
    ("docs/howto/loggers.md", "pip install mlflow", "installs"),
    ("docs/howto/loggers.md", "mlflow.search_runs", "needs mlflow"),
    ("docs/results/pretraining.md", "--recipe=one_hour", "needs books, and takes an hour"),
    ("docs/howto/serve.md", "docker run", "needs docker"),
    ("docs/howto/serve.md", "curl", "needs a running server"),
    ("docs/howto/tpu.md", "gcloud services enable", "needs a project in Google Cloud"),
    ("docs/howto/tpu.md", "storage cp -r uncased", "needs a bucket"),
    ("docs/howto/tpu.md", "DATA=gs://", "needs a bucket"),
    ("docs/howto/tpu.md", "tpu-vm create", "needs a project in Google Cloud"),
    ("docs/howto/tpu.md", "requirements-tpu.txt", "installs"),
    ("docs/howto/tpu.md", "MODEL=gs://", "needs a TPU"),
    ("docs/howto/tpu.md", "--tpu_name=local --recipe=bert_base", "needs a TPU"),
    ("docs/howto/tpu.md", "--do_eval --use_tpu", "needs a TPU"),
    ("docs/howto/tpu.md", "tpu-vm delete", "needs a TPU"),
    ("docs/howto/long-documents.md", "benchmarks.long_documents", "takes half an hour, and needs a model"),
    ("docs/results/tpu-estimates.md", "benchmarks.device_table", "takes hours, and needs another environment"),
    ("docs/results/tpu-estimates.md", "--lengths=lengths.txt", "takes minutes, and needs another environment"),
    ("docs/howto/base-on-one-gpu.md", "pip install -r", "installs"),
    ("docs/howto/gpu.md", "pip install -r requirements-gpu.txt", "installs"),
    ("docs/howto/gpu.md", "pip wheel", "downloads gigabytes"),
    ("docs/howto/gpu.md", "--no-index", "needs the wheels of another block"),
    ("docs/howto/serve.md", "--export_onnx --export_onnx_int8", "installs"),
    ("docs/howto/serve.md", "import onnxruntime", "needs onnxruntime"),
    ("docs/howto/serve.md", "prediction_service_pb2_grpc", "needs a running server, and tensorflow-serving-api"),
    ("docs/results/index.md", "--init_checkpoint=$M", "is what was measured, in 50 minutes each"),
    ("docs/results/serving.md", "benchmarks.serving_load", "takes ten minutes"),
    ("docs/results/paper-tables.md", "--only=Dev,Test", "is what was measured, in two hours"),
]
# Pages whose commands can't be run in a test.
WITHOUT_COMMANDS = {
    *(
        name
        for name in map(pages.name_of, PAGES)
        if name.startswith(("docs/reference/python/", "docs/reference/internals/", "docs/results/"))
    ),
    *("docs/index.md", "docs/explain/differences.md", "docs/explain/optimizer.md", "docs/reference/glossary.md"),
    *("docs/start/cost.md", "docs/start/downloads.md", "docs/start/faq.md", "docs/howto/loggers.md"),
}


# Pages whose Python blocks are one program.
ONE_PROGRAM = {"docs/explain/model.md"}

# Flags that the documentation passes to Beam and other programs.
OTHER_PROGRAMS_FLAGS = {
    "help",
    "runner",
    "flink_master",
    "dir",
    "tag_set",
    "signature_def",
    "input_exprs",
    "logdir",
    "name",
    "enable_batching",  # TensorFlow Serving
    *("location", "spot", "version", "zone"),  # gcloud
    *("include", "json", "processes"),  # hf, WikiExtractor
    "long",  # zstd
    "install",  # wsl
}
# Flags of programs that aren't installed, as defined in the sources.
for directory in ("benchmarks", "examples", "experiments", "tests/torture"):
    for source in (pages.ROOT / directory).glob("*.py"):
        defined = re.findall(r'(?:DEFINE_\w+\(|add_argument\(\s*"--)\s*"?(\w+)"', source.read_text(encoding="utf-8"))
        OTHER_PROGRAMS_FLAGS.update(defined)

NOTEBOOKS = sorted((pages.ROOT / "examples" / "notebooks").glob("*.ipynb"))
# Notebooks that are not run: their cells start the same programs as the documentation, and take 25 s of CPU time.
SLOW_NOTEBOOKS = ("pretraining", "serving")

# Modules whose flags aren't parsed, because parsing would run or require the module.
WITHOUT_FLAGS = ("pip", "pytest", "examples.quickstart", "examples.tagged_articles", "wikiextractor.WikiExtractor")


def not_run(block: Block) -> str | None:
    """Returns the reason why a block isn't run; None if it is run."""
    return next((why for page, text, why in NOT_RUN if page == block.page and text in block.code), None)


def run_blocks(page: pathlib.Path) -> list[Block]:
    """Returns the blocks of a page that are run."""
    return [block for block in pages.blocks(page) if block.language in pages.RUN and not not_run(block)]


def code_size(page: pathlib.Path) -> int:
    """Returns the number of characters in the blocks that are run, from which the time of a page is estimated."""
    return sum(len(block.code) for block in run_blocks(page))


@pytest.fixture(scope="module")
def programs():
    """Returns all programs with their flags."""
    script = str(pages.ROOT / "docs" / "hooks" / "flag_reference.py")
    listed = subprocess.run([sys.executable, script], cwd=pages.ROOT, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(listed)


@pytest.fixture(scope="module")
def small_files(tmp_path_factory):
    """Returns a directory with all files that the documentation's commands read."""
    base = tmp_path_factory.getbasetemp()
    # With -n, the first process that needs the files writes them.
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "files"
    with open(f"{directory}.complete", "a") as complete:
        fcntl.flock(complete, fcntl.LOCK_EX)
        if not os.path.getsize(complete.name):
            directory.mkdir()
            small_data.write_files(directory)
            run_script(directory, small_data.commands())
            complete.write("yes")
    return directory


def run_script(directory: pathlib.Path, script: str, **variables: str) -> str:
    """Runs a shell script and returns the output. The test fails at the first command that fails."""
    environment = {**command_server.running().environment, "SMALLER_FLAGS": "1", "RUN_EAGERLY": "1", **variables}
    finished = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=1000,
    )
    printed = finished.stdout.decode(errors="replace")
    assert finished.returncode == 0, printed[-6000:]
    return printed


def place_of(block: Block) -> str:
    return f">>> {block.page}, line {block.line}"


def script_of(block: Block, number: int, directory: pathlib.Path) -> str:
    """Returns a block as part of the page's script. The script first prints the position of the block."""
    heading = f"echo '{place_of(block)}'\n"
    if block.language == "bash":
        return heading + block.code
    code, before = block.code, directory / f"block_{number - 1}.py"
    if block.page in ONE_PROGRAM and before.exists():
        code = before.read_text(encoding="utf-8") + code
    (directory / f"block_{number}.py").write_text(code, encoding="utf-8")
    return f"{heading}python block_{number}.py\n"


def test_examples_in_docstrings_run(small_files, tmp_path):
    directory = tmp_path / "work"
    shutil.copytree(small_files, directory, symlinks=True)
    run_script(directory, f"python -m tests.documentation.docstrings {' '.join(docstrings.NAMES)}")


# Long tests run first, so that no process is still busy with one when the other processes have finished.
@pytest.mark.parametrize("page", sorted(PAGES, key=code_size, reverse=True), ids=pages.name_of)
def test_blocks_run(page, small_files, tmp_path):
    """The blocks of a page, run in order, print the outputs that the page shows.

    They run in a directory of their own, with the repository, the outputs of `make quickstart`, and the files whose
    sources the page names.
    """
    directory = tmp_path / "work"
    shutil.copytree(small_files, directory, symlinks=True)
    small_data.remove_without_source(directory, page.read_text(encoding="utf-8"))
    blocks = run_blocks(page)
    printed = run_script(directory, "".join(script_of(block, i, directory) for i, block in enumerate(blocks)))
    with_output = list(outputs.of_blocks(pages.blocks(page)))
    shown_for = [block for block, _ in with_output]
    errors = [
        f"{block.page}, line {block.line}: the output is missing:\n{printed_by(block, printed)[-6000:]}"
        for block in blocks
        if not (block in shown_for or outputs.is_silent(printed_by(block, printed)) or "docs/results/" in block.page)
    ]
    for block, shown in with_output:
        if block in blocks:
            of_block = printed_by(block, printed)
            if line := outputs.missing_line(shown, of_block):
                errors.append(f"{shown.page}, line {shown.line}: not printed: {line}\n{of_block[-6000:]}")
    assert not errors, "\n\n".join(errors)


def printed_by(block: Block, printed: str) -> str:
    """Returns the part of a script's output that a block printed."""
    return printed.partition(f"{place_of(block)}\n")[2].partition(f">>> {block.page}, line ")[0]


@pytest.mark.slow  # takes five minutes
def test_numbers_of_the_quickstart_are_within_the_stated_range(tmp_path):
    """The commands of the quickstart and of README run on the complete data."""
    for name in ("examples", *small_data.LINKS):
        (tmp_path / name).symlink_to(pages.ROOT / name)
    # The interpreter itself: the command server's programs shuffle few records.
    path = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
    printed, shown = "", []
    for page in ("docs/start/quickstart.md", "README.md", "docs/howto/pretrain.md"):
        of_page = outputs.of_blocks(pages.blocks(pages.ROOT / page))
        with_range = [(block, output) for block, output in of_page if output.marker == outputs.WITHIN]
        for number, (block, _) in enumerate(with_range):
            script = script_of(block, number, tmp_path).replace("make quickstart", "python -m examples.quickstart")
            script = script.replace(".venv/bin/", "")
            printed += run_script(tmp_path, script, PATH=path, SMALLER_FLAGS="", RUN_EAGERLY="") + "\n"
        shown += with_range
    assert len(shown) == 5
    for block, output in shown:
        of_block = printed_by(block, printed)
        line = outputs.missing_line(output, of_block, is_complete=True)
        assert not line, f"{output.page}, line {output.line}: not printed: {line}\n{of_block[-6000:]}"


@pytest.mark.parametrize(
    ("marker", "shown", "printed", "missing"),
    [
        ("", "loss = 0.5\nDone in 3 s.\n", "Read 2 files.\nloss = 1e-05\nother\nDone in 10 s.\n", None),
        ("", "loss = 0.5\nDone in 3 s.\n", "Done in 3 s.\nloss = 0.5\n", "Done in 3 s."),
        ("", "loss = 0.5\n", "accuracy = 0.5\n", "loss = 0.5"),
        ("", '{"label": "a", ...}\n', '2 lines{"label": "a", "score": 1}\n', None),
        ("", "tf1 [ 0.5 -0.5 ]\n", "tf1 [-0.25  0.125]\n", None),
        ("exact", "16 of 20 texts\n", "17 of 20 texts\n", "16 of 20 texts"),
        ("predicted", "['be'] {'token': 'the'}\n", "['have'] {'token': 'a'}\n", None),
        ("predicted", "['be'] {'token': 'the'}\n", "['have'] {'word': 'a'}\n", "['be'] {'token': 'the'}"),
        ("predicted", "   be 33.7%   have 13%\n", "   ##s 0.1%   , 0.1%\n", None),
    ],
)
def test_outputs_are_compared_line_by_line(marker, shown, printed, missing):
    assert outputs.missing_line(Block("", 1, "text", shown, marker=marker), printed) == missing


@pytest.mark.parametrize(
    ("printed", "is_complete", "is_shown"),
    [
        ("be 33% in 1.2\n", True, True),
        ("be 30% in 1.2\n", True, False),
        ("be 33% in 1.5\n", True, False),
        ("do 33% in 1.2\n", True, False),
        ("do 0.1% in 7\n", False, True),
    ],
)
def test_numbers_of_complete_runs_have_a_range(printed, is_complete, is_shown):
    shown = Block("", 1, "text", "be 33.7% in 1.3\n", marker=outputs.WITHIN)
    assert (outputs.missing_line(shown, printed, is_complete=is_complete) is None) == is_shown


def test_flowcharts_have_all_boxes_and_arrows():
    charts = [block.code for page in PAGES for block in pages.blocks(page) if block.language == "mermaid"]
    for chart in charts:
        drawn = flowcharts.draw(chart)
        assert drawn.count("marker-end") == chart.count("-->")
        assert drawn.count("<rect") == len(set(re.findall(r"\w+(?=\[| -->|$)", chart.partition("\n")[2], re.MULTILINE)))


@pytest.mark.parametrize("page", PAGES, ids=pages.name_of)
def test_programs_and_flags_of_other_blocks_exist(page, tmp_path):
    targets = set(re.findall(r"^([a-z-]+):", (pages.ROOT / "Makefile").read_text(), re.MULTILINE))
    # Benchmark commands are in tables, next to the results.
    inline = re.findall(r"`([^`\n]*python -m benchmarks\.[^`\n]*)`", page.read_text(encoding="utf-8"))
    parsed = [shlex.join(program) for command in inline for program in programs_in(shlex.split(command))]
    for block in filter(not_run, pages.blocks(page)):
        if block.language == "python":
            compile(block.code, block.page, "exec")
            continue
        for command in pages.commands(block.code):
            words = shlex.split(command, comments=True)
            if words[0] == "make":
                assert set(words[1:]) <= targets, command
            parsed += [shlex.join(program) for program in programs_in(words)]
    run_script(pages.ROOT, "\n".join(parsed), PARSE_ONLY="1", SMALLER_FLAGS="")


def programs_in(words: list[str]) -> list[list[str]]:
    """Returns the project's programs in a command, with arguments and without preceding variables."""
    for start, word in enumerate(words):
        name = pathlib.Path(word).name
        if name == "python" or name in command_server.CONSOLE_SCRIPTS:
            arguments = words[start + 1 :]
            end = next((i for i, argument in enumerate(arguments) if argument in ("|", ";", "&&", "<", ">", "&")), None)
            if arguments[0] == "-c" or arguments[1] in WITHOUT_FLAGS:
                return []
            return [[name, *arguments[:end]], *(programs_in(arguments[end + 1 :]) if end is not None else [])]
    return []


def test_every_block_is_of_a_language_that_is_known():
    for page in PAGES:
        for block in pages.blocks(page):
            assert block.language in (*pages.RUN, *pages.SHOWN), f"{block.page}, line {block.line}: {block.language!r}"
            assert block.marker in outputs.MARKERS, f"{block.page}, line {block.line}: {block.marker!r}"


@pytest.mark.parametrize("page", PAGES, ids=pages.name_of)
def test_a_page_has_commands_that_run(page):
    if pages.name_of(page) not in WITHOUT_COMMANDS:
        assert run_blocks(page)


@pytest.mark.parametrize(("page", "text", "reason"), NOT_RUN)
def test_exceptions_are_those_of_one_block(page, text, reason):
    matching = [block for block in pages.blocks(pages.ROOT / page) if text in block.code]
    assert len(matching) == 1, f"{page}: {text!r} is in {len(matching)} blocks"


def test_flags_in_the_text_exist(programs):
    """Flags in tables and sentences are flags of a program, with a valid value."""
    values: dict[str, list[set[str]]] = {}
    for program in programs:
        for flag in program["flags"]:
            values.setdefault(flag["name"], []).append(set(flag["values"] or ()))
            if flag["type"] == "bool":
                values.setdefault(f"no{flag['name']}", []).append(set())
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name, value in re.findall(r"--([a-z][a-z0-9_]*)(?:=([a-z0-9_]+))?(?![-\w])", text):
            if name not in OTHER_PROGRAMS_FLAGS:
                where = f"{pages.name_of(page)}: --{name}"
                assert name in values, where
                assert not value or any(not enum or value in enum for enum in values[name]), f"{where}={value}"


@pytest.mark.parametrize(
    "name",
    ["run_pretraining", "run_classifier", "run_squad", "data_prep.create_pretraining_data", "data_prep.beam_pipeline"],
)
def test_help_shows_every_flag_in_a_section(programs, name):
    (described,) = [program for program in programs if program["program"] == name]
    shown = subprocess.run(
        [sys.executable, "-m", name, "--help"], cwd=pages.ROOT, text=True, capture_output=True
    ).stdout
    listed = re.findall(r"^  --(?:\[no\])?(\w+):", shown.partition("flags:\n\n")[2], re.MULTILINE)
    assert sorted(listed) == [flag["name"] for flag in described["flags"]]


def test_listed_messages_are_those_of_the_programs():
    known = messages.in_source()
    assert messages.unknown_parts("FILE: no such problem. Try again.", known)
    unknown = {message: messages.unknown_parts(message, known) for message in messages.listed()}
    assert not {message: parts for message, parts in unknown.items() if parts}


def test_files_in_the_text_exist():
    for page in PAGES:
        for path in re.findall(
            r"(?<![\w/.])((?:bert_tf|data_prep|experiments|tests|docs)/[\w/]+\.(?:py|md))", page.read_text()
        ):
            assert (pages.ROOT / path).exists(), f"{pages.name_of(page)}: {path}"


def test_the_page_of_the_installation_names_every_command():
    text = (pages.ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(bert-[a-z-]+)`", text)) == set(command_server.CONSOLE_SCRIPTS)


def code_cells(notebook: pathlib.Path) -> list[dict]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW_NOTEBOOKS else [])
        for path in NOTEBOOKS
    ],
)
def test_cells_of_notebooks_run(notebook, small_files, tmp_path):
    smaller = small_data.NOTEBOOKS[notebook.stem]
    script = "import matplotlib\nmatplotlib.use('agg')\n"
    for cell in code_cells(notebook):
        script += "".join(cell["source"]) + "\n"
        if "parameters" in cell["metadata"].get("tags", ()):
            for name, value in smaller.items():
                assert re.search(rf"^(\w+, )*{name}\b.* = ", script, re.MULTILINE), f"{name} is no parameter"
                script += f"{name} = {value!r}\n"
    shutil.copytree(small_files, tmp_path / "work", symlinks=True)
    directory = tmp_path / "work" / "examples" / "notebooks"
    directory.mkdir()
    (directory / "cells.py").write_text(script, encoding="utf-8")
    run_script(directory, "python cells.py")


def test_notebooks_were_executed_from_top_to_bottom():
    """Committed notebooks come from `make notebooks`: small, with pictures, without messages about the machine."""
    assert {path.stem for path in NOTEBOOKS} == small_data.NOTEBOOKS.keys() == set(execute_notebooks.NAMES)
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 1_000_000
    for path in NOTEBOOKS:
        cells = code_cells(path)
        outputs = [output for cell in cells for output in cell["outputs"]]
        assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)], path.name
        assert {output.get("name") for output in outputs} <= {"stdout", None}, path.name
        assert not re.search(r"/tmp/|/home/|INFO:|WARNING:", json.dumps(outputs)), path.name
        pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", ())]
        assert pictures and all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures), path.name
