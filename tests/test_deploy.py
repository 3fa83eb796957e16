"""Tests the scripts in deploy and .ci, with substitutes for the commands of Slurm and Google Cloud."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from tests.conftest import ROOT

SLURM = {"SLURM_JOB_ID": "41234", "SLURM_JOB_NODELIST": "gpu[08-10,12],login", "SLURM_NTASKS": "5", "SLURM_PROCID": "3"}


def load(path):
    """Imports a script that is not in a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


with_tf_config = load(ROOT / "deploy" / "slurm" / "with_tf_config.py")
insert_repository_url = load(ROOT / ".ci" / "insert_repository_url.py")


@pytest.fixture
def run(tmp_path):
    """Runs a script with substitute commands, which write their arguments to `calls` and run the given code."""

    def run(script, *arguments, commands, **variables):
        for name, code in commands.items():
            file = tmp_path / "bin" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> {tmp_path}/calls\n{code}\n')
            file.chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **variables}
        done = subprocess.run(
            [str(ROOT / script), *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50
        )
        return done, (tmp_path / "calls").read_text().splitlines()

    return run


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("node7", ["node7"]),
        ("a,b", ["a", "b"]),
        ("gpu[08-10,3],login", ["gpu08", "gpu09", "gpu10", "gpu3", "login"]),
        ("rack[1-2]n[05,06]", ["rack1n05", "rack1n06", "rack2n05", "rack2n06"]),
        ("127.0.0.[1-2]", ["127.0.0.1", "127.0.0.2"]),
    ],
)
def test_a_list_of_nodes_is_expanded(nodes, names):
    assert with_tf_config.expand(nodes) == names


def test_tf_config_lists_the_nodes_and_this_task():
    config = json.loads(with_tf_config.tf_config(SLURM))
    workers = [f"{name}:21234" for name in ("gpu08", "gpu09", "gpu10", "gpu12", "login")]
    assert config == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 3}}
    of_a_step = {"SLURM_STEP_NODELIST": "gpu[08-09]", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    config = json.loads(with_tf_config.tf_config(SLURM | of_a_step | {"BERT_PORT": "5"}))
    assert config == {"cluster": {"worker": ["gpu08:5", "gpu09:5"]}, "task": {"type": "worker", "index": 1}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"SLURM_NTASKS": "10"}, "10 tasks on 5 nodes. Use --ntasks-per-node=1"),
        ({"SLURM_JOB_NODELIST": "gpu[1-2"}, r"'gpu\[1-2' is not a list of nodes"),
        ({"SLURM_PROCID": None}, "SLURM_PROCID is not set. Start this script with srun"),
    ],
)
def test_other_variables_are_errors(changed, message):
    variables = {name: value for name, value in (SLURM | changed).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        with_tf_config.tf_config(variables)


def test_the_command_gets_tf_config():
    script = ROOT / "deploy" / "slurm" / "with_tf_config.py"
    command = [sys.executable, script, sys.executable, "-c", "import os; print(os.environ['TF_CONFIG'])"]
    printed = subprocess.check_output(command, env={**os.environ, **SLURM}, text=True)
    assert printed.strip() == with_tf_config.tf_config(SLURM)


def test_the_job_starts_the_workers_and_returns_their_status(run):
    done, calls = run("deploy/slurm/pretrain.sbatch", "--a=b c", commands={"srun": "exit 7"}, PYTHON="py", **SLURM)
    assert done.returncode == 7
    program = "run_pretraining.py --do_train --distribution_strategy=multi_worker --a=b c"
    assert calls == [f"srun py deploy/slurm/with_tf_config.py py {program}"]


def test_a_job_whose_time_is_up_stops_the_workers_and_is_queued_again(run):
    # `srun` sends Slurm's signal to its parent process, and ends after `scancel` was called.
    srun = "kill -TERM $PPID; until grep -q scancel $(dirname $0)/../calls; do sleep 0.05; done; exit 1"
    commands = {"srun": srun, "scancel": "", "scontrol": ""}
    done, calls = run("deploy/slurm/pretrain.sbatch", commands=commands, **SLURM)
    assert done.returncode == 1 and "The time is up." in done.stdout
    assert calls[1:] == ["scancel --signal=TERM 41234", "scontrol requeue 41234"]


def test_a_tpu_is_requested_and_awaited(run):
    # The request is active when its state is read for the third time.
    gcloud = """if [[ $4 == describe ]]; then
        if (($(grep -c describe $(dirname $0)/../calls) < 3)); then echo WAITING_FOR_RESOURCES; else echo ACTIVE; fi
    fi"""
    variables = {"PROJECT": "p", "ZONE": "z", "POLL_SECONDS": "0", "SPOT": "1"}
    done, calls = run("deploy/tpu/queued_tpu.sh", "create", commands={"gcloud": gcloud}, **variables)
    assert done.returncode == 0
    assert calls == [
        "gcloud compute tpus queued-resources create bert --node-id=bert --project=p --zone=z --spot "
        "--accelerator-type=v5litepod-8 --runtime-version=v2-alpha-tpuv5-lite"
    ]
    done, calls = run("deploy/tpu/queued_tpu.sh", "wait", commands={"gcloud": gcloud}, **variables)
    assert done.returncode == 0 and len(calls) == 4
    done, calls = run("deploy/tpu/queued_tpu.sh", "run", "echo", "a b", commands={"gcloud": gcloud}, **variables)
    assert r"nohup echo a\ b  > run.log" in calls[-1]
    done, _ = run("deploy/tpu/queued_tpu.sh", "wait", commands={"gcloud": "echo FAILED"}, **variables)
    assert done.returncode == 1 and "The request has ended." in done.stderr


def test_links_of_the_readme_and_the_metadata_become_urls():
    page = "[a](docs/a.md#b) ![c](docs/c.svg) [d](https://d/e.md) [f](#g)"
    url = "https://host/o/n"
    expected = f"[a]({url}/blob/v1/docs/a.md#b) ![c]({url}/raw/v1/docs/c.svg) [d](https://d/e.md) [f](#g)"
    assert insert_repository_url.with_urls(page, url, "v1") == expected
    readme = insert_repository_url.with_urls((ROOT / "README.md").read_text(), url, "v1")
    targets = re.findall(r"\]\(([^)]*)\)", readme)
    assert targets and all(target.startswith("https://") for target in targets)
    pyproject = insert_repository_url.with_project_urls((ROOT / "pyproject.toml").read_text(), url, "v1")
    assert tomllib.loads(pyproject)["project"]["urls"]["Issues"] == f"{url}/issues"


def test_files_that_state_a_version_agree():
    version = re.search(r'__version__ = "(.*)"', (ROOT / "bert_tf" / "runtime" / "__init__.py").read_text())[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    pinned = (ROOT / "requirements-dev.txt").read_text() + (ROOT / "requirements-docs.txt").read_text()
    hooks = re.findall(r"additional_dependencies: \[(.*)\]", (ROOT / ".pre-commit-config.yaml").read_text())
    assert hooks and all(f"\n{hook}\n" in pinned for hook in hooks)
