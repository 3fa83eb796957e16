import json
import pathlib

import pytest

from bert_tf.runtime.files import InputError
from data_prep.corpus import files
from tests.data_prep.corpora import make, preparation_config, write_corpus, write_vocab

beam = pytest.importorskip("apache_beam", reason="apache-beam is not installed (pip install -r requirements-beam.txt)")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.portability.local_job_service import LocalJobServicer  # noqa: E402

from data_prep.jobs import beam_documents, beam_stages  # noqa: E402 (needs Beam)


def run(config, *options):
    options = PipelineOptions(list(options or ["--runner=FnApiRunner"]))
    pipeline = beam.Pipeline(options=options)
    pipeline | beam_stages.PreparePretrainingData(config)
    result = pipeline.run()
    result.wait_until_finish()
    return beam_documents.counts_of(result)


def contents(paths):
    return [pathlib.Path(path).read_bytes() for path in paths], [json.load(open(f"{p}.meta.json")) for p in paths]


@pytest.mark.parametrize("options", [{}, {"is_masked": False, "whole_word": True, "dupe_factor": 1}])
def test_files_are_those_of_the_local_mode(tmp_path, monkeypatch, options):
    monkeypatch.setattr(files, "_SPLIT_BYTES", (700, 700))
    write_vocab(tmp_path)
    text = write_corpus(tmp_path / "text.txt")
    paths, counts = make(tmp_path, text, output="local", num_shards=3, **options)
    config = preparation_config(tmp_path, text, output="beam", num_shards=3, **options)
    found = run(config)
    assert contents(config.shards.paths) == contents(paths)
    assert config.shards.are_finished()
    assert {name: n for name, n in found.items() if n} == {name: n for name, n in counts.items() if n}


def test_a_job_server_gets_the_same_files_from_workers_of_the_caller(tmp_path):
    """The way of Flink and Spark: the pipeline is sent to a server, which has workers run its functions."""
    write_vocab(tmp_path)
    text = write_corpus(tmp_path / "text.txt")
    paths, counts = make(tmp_path, text, output="local", num_shards=2)
    config = preparation_config(tmp_path, text, output="beam", num_shards=2)
    server = LocalJobServicer(str(tmp_path / "staging"))
    port = server.start_grpc_server()
    try:
        endpoint = f"--job_endpoint=localhost:{port}"
        found = run(config, "--runner=PortableRunner", endpoint, "--environment_type=LOOPBACK")
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


def test_errors_are_told_as_in_the_local_mode(tmp_path):
    write_vocab(tmp_path)
    (tmp_path / "one.txt").write_text("ba co.\nfu di.\n")
    with pytest.raises(InputError, match="one single document"):
        run(preparation_config(tmp_path, tmp_path / "one.txt"))
