import json
import os
import pathlib
import sys

import pytest

from data_prep.corpus import files
from tests.conftest import ROOT, assert_refused
from tests.data_prep.corpora import make, preparation_config, write_corpus, write_vocab

beam = pytest.importorskip("apache_beam", reason="apache-beam is not installed (pip install -r requirements-beam.txt)")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.portability.local_job_service import LocalJobServicer  # noqa: E402
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer  # noqa: E402

from data_prep.beam import PreparePretrainingData, counts_of  # noqa: E402 (needs Beam)


def run(config, *options):
    options = PipelineOptions(list(options or ["--runner=FnApiRunner"]))
    pipeline = beam.Pipeline(options=options)
    pipeline | PreparePretrainingData(config)
    result = pipeline.run()
    result.wait_until_finish()
    return counts_of(result)


def contents(paths):
    return [pathlib.Path(path).read_bytes() for path in paths], [json.load(open(f"{p}.meta.json")) for p in paths]


def test_files_are_those_of_the_local_mode(tmp_path, monkeypatch):
    options = {"is_masked": False, "whole_word": True, "dupe_factor": 1}
    monkeypatch.setattr(files, "_SPLIT_BYTES", (700, 700))
    write_vocab(tmp_path)
    text = write_corpus(tmp_path / "text.txt")
    paths, counts = make(tmp_path, text, output="local", num_shards=3, **options)
    config = preparation_config(tmp_path, text, output="beam", num_shards=3, **options)
    found = run(config)
    assert contents(config.shards.paths) == contents(paths)
    assert config.shards.are_finished()
    assert {name: n for name, n in found.items() if n} == {name: n for name, n in counts.items() if n}


@pytest.fixture
def worker_pool(monkeypatch):
    """Yields the address of a server that runs the functions of pipelines in processes without shared memory."""
    # The server starts workers with the command `python`.
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    monkeypatch.chdir(ROOT)
    address, server = BeamFnExternalWorkerPoolServicer.start(use_process=True)
    yield address
    server.stop(0)


def test_a_job_server_and_workers_in_another_process_make_the_same_files(tmp_path, worker_pool):
    """As in Flink and Spark, the pipeline is sent to a server, and workers run its functions."""
    write_vocab(tmp_path)
    text = write_corpus(tmp_path / "text.txt")
    paths, counts = make(tmp_path, text, output="local", num_shards=2)
    config = preparation_config(tmp_path, text, output="beam", num_shards=2)
    server = LocalJobServicer(str(tmp_path / "staging"))
    port = server.start_grpc_server()
    workers = ("--environment_type=EXTERNAL", f"--environment_config={worker_pool}")
    try:
        found = run(config, "--runner=PortableRunner", f"--job_endpoint=localhost:{port}", *workers)
    finally:
        server.stop()
    assert contents(config.shards.paths) == contents(paths)
    assert found["records"] == counts["records"] and found["predictions"] == counts["predictions"]


def test_bad_lines_are_counted_as_in_the_local_mode(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SPLIT_BYTES", (100, 100))
    write_vocab(tmp_path)
    (tmp_path / "text.txt").write_bytes(b"ba co.\n\xff\n\nfu\x07 di.\n\n" * 20)
    _, counts = make(tmp_path, tmp_path / "text.txt", output="local")
    found = run(preparation_config(tmp_path, tmp_path / "text.txt", output="beam"))
    assert sorted(message.partition(":")[0] for message in counts["bad_lines"]) == found["bad_lines"]


def test_errors_are_those_of_the_local_mode(tmp_path):
    write_vocab(tmp_path)
    (tmp_path / "one.txt").write_text("ba co.\nfu di.\n")
    assert_refused("a single document", run, preparation_config(tmp_path, tmp_path / "one.txt"))
