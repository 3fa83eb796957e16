import collections
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from bert_tf.runtime.files import InputError
from data_prep import inspect
from data_prep.examples import set_page
from data_prep.jobs.preparation import Resources, prepare
from tests.data_prep.corpora import PIECES, features, make, preparation_config, records, write_corpus, write_vocab


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    write_vocab(folder)
    write_corpus(folder / "text.txt")
    return folder


def statistics(text):
    """Returns the rows of the table."""
    lines = text[text.index("statistics") :].splitlines()[2:]
    return {name: value.split() for name, value in (line.strip().split("  ", 1) for line in lines)}


def test_examples_are_shown_as_text_with_marks(folder):
    ids = [PIECES.index(p) for p in ("[CLS]", "ba", "[MASK]", "[SEP]", "##fu", "##co", "ga", "[SEP]", "[PAD]")]
    example = {
        "input_ids": ids,
        "input_mask": [1] * 8 + [0],
        "segment_ids": [0] * 4 + [1] * 4 + [0],
        "masked_lm_positions": [2, 5, 6, 0],
        "masked_lm_ids": [PIECES.index("di"), PIECES.index("##la"), PIECES.index("ga"), 0],
        "masked_lm_weights": [1, 1, 1, 0],
        "next_sentence_labels": 1,
    }
    arrays = {name: np.array(value) for name, value in example.items()}
    assert inspect.describe(arrays, dict(enumerate(PIECES))) == (
        "8 tokens, 3 of them to be predicted; B is from another document\n"
        "  A: [CLS] ba {di -> [MASK]} [SEP]\n"
        "  B: ##fu{##la -> ##co} {ga} [SEP]"
    )


def test_statistics_are_those_of_the_set(folder, capsys):
    paths, counts = make(folder, folder / "text.txt", output="two", num_shards=2, dupe_factor=5)
    inspect.show(paths, str(folder / "vocab.txt"), 3)
    printed = capsys.readouterr().out
    assert printed.count(", example ") == 3 and f"{paths[0]}, example 3: " in printed and "-> [MASK]}" in printed
    found = statistics(printed)
    assert found["examples"] == [str(counts["records"])]
    assert found["tokens"] == [str(counts["tokens"])]
    assert found["predictions"] == [str(counts["predictions"])]
    assert found["random next sentences"] == [f"{counts['random_next'] / counts['records']:.2%}"]
    shares = [float(found[name][0].rstrip("%")) for name in ("of these, [MASK]", "the same", "another piece")]
    assert sum(shares) == pytest.approx(100, abs=0.05) and abs(shares[0] - 80) < 5
    lengths = [sum(features(record)["input_mask"]) for path in paths for record in records(path)]
    assert found["tokens an example"] == [str(min(lengths)), "to", "24,", "mean", f"{sum(lengths) / len(lengths):.2f}"]


def test_a_page_shows_the_set(folder, tmp_path):
    paths, counts = make(folder, folder / "text.txt", output="page", num_shards=2, dupe_factor=5)
    page = tmp_path / "page.html"
    inspect.show(paths, str(folder / "vocab.txt"), 7, str(page))
    text = page.read_text()
    tree = Page(text)
    assert tree.open == [] and tree.tags["article"] == 7
    assert not {"script", "link", "img", "iframe"} & set(tree.tags) and "://" not in text and "url(" not in text
    assert 'name="viewport" content="width=device-width' in text
    lengths = [sum(features(record)["input_mask"]) for path in paths for record in records(path)]
    bars = dict(map(int, title.split(": ")) for title in tree.titles[1:] if int(title.split(": ")[0]) > 4)
    assert bars[max(lengths)] >= lengths.count(max(lengths)) > 1
    random_next = counts["random_next"]
    assert f"{random_next} ({random_next / counts['records']:.2%})" in text
    marked = re.findall(r'<mark class="(\w+)">([^<]*)</mark>', text[text.index("<article>") :])
    assert {kind for kind, _ in marked} <= {"mask", "same", "other"} and len(marked) > 7
    assert all(("→" in word) == (kind == "other") for kind, word in marked)
    inspect.show(paths, str(folder / "vocab.txt"), 7, str(page))
    assert page.read_text() == text


class Page(HTMLParser):
    """Counts the tags of a page, and finds those that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.titles = [], collections.Counter(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "title":
            self.titles.append(data)


def test_examples_on_the_page_are_marked(folder):
    ids = [PIECES.index(p) for p in ("[CLS]", "ba", "[MASK]", "[SEP]", "##fu", "##co", "ga", "[SEP]", "[PAD]")]
    example = {
        "input_ids": np.array(ids),
        "input_mask": np.array([1] * 8 + [0]),
        "segment_ids": np.array([0] * 4 + [1] * 4 + [0]),
        "masked_lm_positions": np.array([2, 5, 6, 0]),
        "masked_lm_ids": np.array([PIECES.index("di"), PIECES.index("##la"), PIECES.index("ga"), 0]),
        "masked_lm_weights": np.array([1, 1, 1, 0]),
        "next_sentence_labels": np.array([1]),
    }
    shown = set_page.page("<a>", {}, [], [set_page.SampledExample("x&y", example)], dict(enumerate(PIECES)))
    assert "<h1>&lt;a&gt;</h1>" in shown
    assert (
        "<b>x&amp;y: 8 tokens, 3 to be predicted; B is from another document</b></p>"
        '<p>A: [CLS] ba <mark class="mask">di</mark> [SEP]</p>'
        '<p>B:fu<mark class="other">la → ##co</mark> <mark class="same">ga</mark> [SEP]</p>'
    ) in shown


@pytest.mark.parametrize(
    ("counts", "bars"),
    [({5: 2}, ["5: 2"]), ({1: 1, 3: 4}, ["1: 1", "2: 0", "3: 4"]), ({0: 1, 128: 6}, ["0 to 2: 1", "126 to 128: 6"])],
)
def test_histograms_count_every_number(counts, bars):
    shown = re.findall("<title>([^<]*)</title>", set_page.page("", {}, [set_page.Histogram("", counts)], [], {}))[1:]
    assert [shown[0], shown[-1]] == [bars[0], bars[-1]] and len(shown) <= 64
    assert sum(int(bar.rpartition(" ")[2]) for bar in shown) == sum(counts.values())


def test_unmasked_sets_are_shown_too(folder, capsys):
    paths, _ = make(folder, folder / "text.txt", output="plain", is_masked=False, whole_word=True)
    inspect.show(paths, str(folder / "vocab.txt"), 1)
    printed = capsys.readouterr().out
    assert "while training" in printed and "{" not in printed


def test_empty_files_are_shown_as_such(folder, tmp_path, capsys):
    text = tmp_path / "few.txt"
    text.write_text("ba co.\ndi.\n\nfu ga.\nhi.\n")
    config = preparation_config(folder, text, output="few", num_shards=20, dupe_factor=1)
    counts = prepare(config, Resources(str(folder / "work"), 1, 400))
    paths = config.shards.paths
    empty = sum(not list(records(path)) for path in paths)
    assert 0 < config.shards.count_empty(counts["records"]) == empty < 20
    page = tmp_path / "page.html"
    inspect.show(paths, str(folder / "vocab.txt"), 1, str(page))
    assert statistics(capsys.readouterr().out)["examples"] == [str(counts["records"])]
    assert page.read_text().count("0 examples") == empty
    with pytest.raises(InputError, match="every file is empty"):
        inspect.show([path for path in paths if not list(records(path))], str(folder / "vocab.txt"), 1)


def test_the_vocabulary_is_looked_for_beside_the_file(folder, tmp_path):
    assert inspect.vocab_file_beside(str(folder / "two-00000-of-00002")) == str(folder / "vocab.txt")
    with pytest.raises(InputError, match=r"--vocab_file is not given, and there is no vocab\.txt beside"):
        inspect.vocab_file_beside(str(tmp_path / "out"))


def test_what_can_not_be_shown_is_named(folder, tmp_path):
    paths, _ = make(folder, folder / "text.txt", output="three")
    other = tmp_path / "vocab.txt"
    other.write_text("\n".join(PIECES[:20]) + "\n")
    with pytest.raises(InputError, match="made with another vocabulary than --vocab_file"):
        inspect.show(paths, str(other), 1)
    with pytest.raises(InputError, match=r"--vocab_file has 20 pieces, but .* holds the id"):
        list(inspect.read_batches(paths[0], 20))
    shown = [features(record) for record in records(paths[0])]
    largest = max(max(*example["input_ids"], *example["masked_lm_ids"]) for example in shown)
    assert sum(len(batch["input_ids"]) for batch in inspect.read_batches(paths[0], largest + 1)) == len(shown)
    with pytest.raises(InputError, match=f"--vocab_file has {largest} pieces, but .* holds the id {largest}"):
        list(inspect.read_batches(paths[0], largest))
    with pytest.raises(InputError, match="not a TFRecord file"):
        list(inspect.read_batches(str(folder / "text.txt"), 20))
    with open(paths[0], "ab") as writer:
        writer.write(b"x")
    with pytest.raises(InputError, match="by its sidecar"):
        inspect.show(paths, str(folder / "vocab.txt"), 1)
