import collections
import json
import pathlib
import re
import sys

from examples import quickstart
from tests import command_server
from tests.data_prep.corpora import PIECES, features, make, records, write_corpus, write_vocab
from tests.documentation import small_data

EXAMPLES = pathlib.Path(quickstart.__file__).parent


def test_most_frequent_label_counts_masked_pieces_only(tmp_path):
    write_vocab(tmp_path)
    write_corpus(tmp_path / "text.txt")
    [path], _ = make(tmp_path, tmp_path / "text.txt", output="one", dupe_factor=3)
    labels = collections.Counter()
    for record in map(features, records(path)):
        weights = map(int, record["masked_lm_weights"])
        labels.update(label for label, weight in zip(record["masked_lm_ids"], weights, strict=True) if weight)
    piece, share = quickstart.most_frequent_label(path, tmp_path / "vocab.txt")
    assert labels[PIECES.index(piece)] == max(labels.values())
    assert share == max(labels.values()) / labels.total()


def test_the_model_has_an_embedding_for_each_piece_of_the_vocabulary():
    [size] = re.findall("--vocab_size=([0-9]+)", pathlib.Path(quickstart.__file__).read_text())
    assert json.loads((EXAMPLES / "tiny.json").read_text())["vocab_size"] == int(size)


def test_every_step_runs_and_its_results_are_shown(tmp_path, monkeypatch, capfd):
    small_data.write_files(tmp_path)
    (tmp_path / "examples" / "tiny.json").symlink_to(EXAMPLES / "tiny.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["quickstart"])
    monkeypatch.setattr(sys, "executable", command_server.running().python)
    quick = {"SMALLER_FLAGS": "1", "PLAIN_KERNELS": "1", "RUN_EAGERLY": "1"}
    for name, value in {**command_server.running().environment, **quick}.items():
        monkeypatch.setenv(name, value)
    quickstart.main()
    shown = capfd.readouterr().out
    for text in (*quickstart.SENTENCES, *(text.replace("[MASK]", "") for text in quickstart.MASKED)):
        assert all(part in shown for part in text.split("  "))
    assert f"  {quickstart.PRETRAINED / 'metrics.png'}\n" in shown
    piece, share = quickstart.most_frequent_label(quickstart.HELDOUT, quickstart.VOCAB)
    assert re.search(
        rf"held-out text: \d+% correct\. Always guessing {re.escape(repr(piece))}: {share:.0%} correct\.", shown
    )
