import itertools
import json
import pathlib
import re

import pytest

from bert_tf.runtime.files import InputError
from data_prep.corpus import files, sorted_runs
from data_prep.corpus.cleaning import CleaningOptions
from data_prep.jobs import cleaning_stages, workers
from data_prep.jobs import preparation as preparing
from data_prep.jobs.preparation import Resources, prepare
from tests import programs
from tests.data_prep.corpora import make, preparation_config, write_corpus, write_vocab

EXACT = CleaningOptions("exact", min_document_chars=20)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A text in two files, in which documents are repeated and some are short; and the same without them."""
    monkeypatch.setattr(files, "_SPLIT_BYTES", (300, 300))
    monkeypatch.setattr(preparing, "_RUN_EXAMPLES", (4, 4))
    write_vocab(tmp_path)
    documents = pathlib.Path(write_corpus(tmp_path / "kept.txt")).read_text().split("\n\n")
    documents = [document.strip() for document in documents if len(document) > 40]
    (tmp_path / "kept.txt").write_text("\n\n".join(documents))
    dirty = [*documents[:9], "ba co.", documents[3].replace("\n", " "), *documents[9:], documents[0].upper()]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("\n\n".join(dirty[:15]) + "\n")
    (tmp_path / "in" / "2.txt").write_text("\n\n".join(dirty[15:]) + "\n")
    return tmp_path / "in", tmp_path / "kept.txt"


def contents(paths):
    return [pathlib.Path(path).read_bytes() for path in paths]


def removed(tmp_path):
    rows = map(json.loads, (tmp_path / "out.tfrecord.rejected.jsonl").read_text().splitlines())
    return [(pathlib.Path(row["file"]).name, row["line"], row["action"], row["reason"], row["found"]) for row in rows]


def test_a_cleaned_corpus_gives_the_examples_of_what_is_kept(corpus, tmp_path, monkeypatch):
    dirty, kept = corpus
    expected, counts = make(tmp_path, kept, output="expected", num_shards=3)
    paths, cleaned = make(tmp_path, dirty, num_shards=3, cleaning=EXACT, work_dir="work-1")
    assert contents(paths) == contents(expected)
    assert cleaned.pop("removed_short") == 1 and cleaned.pop("removed_duplicates") == 2
    assert cleaned.pop("removed_other_language") == 0
    messages = cleaned.pop("bad_lines")
    assert cleaned == {name: n for name, n in counts.items() if name != "bad_lines"}
    sidecars = [json.loads(pathlib.Path(f"{path}.meta.json").read_text())["counts"] for path in paths]
    assert [sidecar.get("removed_duplicates") for sidecar in sidecars] == [2, None, None]

    first = (dirty / "1.txt").read_text().splitlines()
    short = first.index("ba co.") + 1
    copied = [i + 1 for i, line in enumerate(first) if i in (0, short + 1) or (not first[i - 1] and line)]
    last = len((dirty / "2.txt").read_text().splitlines())
    rows = removed(tmp_path)
    assert rows[:2] == [
        ("1.txt", short, "removed", "too short", ""),
        ("1.txt", short + 2, "removed", "a duplicate", f"of {dirty}/1.txt line {copied[3]}"),
    ]
    assert rows[2][3:] == ("a duplicate", f"of {dirty}/1.txt line 1") and rows[2][1] <= last
    assert [message.split(":")[0] for message in messages] == [
        "removed 1 document (too short)",
        "removed 2 documents (a duplicate)",
    ]

    for limits in ({}, {"_SIGNATURES": 7}, {"_SIGNATURES": 7, "MOST_RUNS": 2}):
        for name, value in limits.items():
            monkeypatch.setattr(cleaning_stages if name == "_SIGNATURES" else sorted_runs, name, value)
        again, _ = make(tmp_path, dirty, 1 if limits else 2, f"work-{limits}", num_shards=3, cleaning=EXACT)
        assert contents(again) == contents(expected) and removed(tmp_path) == rows


def test_a_cleaned_corpus_does_not_depend_on_crashes(corpus, tmp_path, monkeypatch):
    dirty, kept = corpus
    expected = contents(make(tmp_path, kept, output="expected")[0])
    make(tmp_path, dirty, cleaning=EXACT)
    rows = removed(tmp_path)
    monkeypatch.setattr(cleaning_stages, "_SIGNATURES", 7)
    monkeypatch.setattr(sorted_runs, "MOST_RUNS", 2)
    config = preparation_config(tmp_path, dirty, output="crashed/out.tfrecord", cleaning=EXACT)
    run_job = workers._run_job
    counter = itertools.count(1)

    def crash(stage, job, advance):
        if next(counter) % 4 == 0:
            stage.run(job, advance)  # it is done, but nobody has been told
            raise KeyboardInterrupt
        return run_job(stage, job, advance)

    monkeypatch.setattr(workers, "_run_job", crash)
    crashes = 0
    while not config.shards.are_finished():
        try:
            prepare(config, Resources(str(tmp_path / "crashed-work"), 1, 400))
        except KeyboardInterrupt:
            crashes += 1
    assert crashes > 20
    assert contents(config.shards.paths) == expected and removed(tmp_path / "crashed") == rows


def test_similar_documents_and_languages(corpus, tmp_path):
    pytest.importorskip("datasketch")
    pytest.importorskip("py3langid")
    dirty, _ = corpus
    text = dirty / "2.txt"
    document = (dirty / "1.txt").read_text().split("\n\n")[1]
    text.write_text(f"{text.read_text()}\n{document} {document}\n{document} ba\n")
    _, exact = make(tmp_path, dirty, cleaning=CleaningOptions("exact"))
    _, near = make(tmp_path, dirty, cleaning=CleaningOptions("near"))
    assert near["removed_duplicates"] == exact["removed_duplicates"] + 1
    with pytest.raises(InputError, match=r"no text in the files when \d+ documents have been removed"):
        make(tmp_path, dirty, cleaning=CleaningOptions(keep_languages=("zh",)))


def test_flags_of_cleaning(corpus, tmp_path):
    dirty, _ = corpus
    flags = [f"--vocab_file={tmp_path}/vocab.txt", "--max_seq_length=24", "--max_predictions_per_seq=4"]
    clean = [f"--input_file={dirty}", f"--output_file={tmp_path}/out", "--remove_duplicates=exact"]
    clean += ["--min_document_chars=20"]
    printed = programs.run("-m", "data_prep.create_pretraining_data", *flags, *clean, "--num_workers=1")
    assert re.search(r" 2 +documents that repeat an earlier one \(removed\)", printed)
    assert "already" in programs.run("-m", "data_prep.create_pretraining_data", *flags, *clean)
    refused = programs.run("-m", "data_prep.create_pretraining_data", *flags, *clean, "--reference_order", expect=1)
    assert "--remove_duplicates can't be used with --reference_order" in refused
