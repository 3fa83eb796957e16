import numpy as np
import pytest

from bert_tf.runtime.files import InputError
from data_prep.corpus import cleaning
from data_prep.corpus.cleaning import (
    DOCUMENT,
    SIGNATURE,
    CleaningOptions,
    DocumentExaminer,
    document_keys,
    documents_file,
    find_duplicates,
    first_of_each,
    part_of_key,
)
from data_prep.corpus.sorted_runs import RunWriter, gather, runs_of

ENGLISH = "The old man and the boy went down to the sea, and there was nothing to be seen but water and sky."
GERMAN = "Der alte Mann und der Junge gingen hinunter zum Meer, und es war nichts zu sehen als Wasser und Himmel."


def examine(tmp_path, documents, **options):
    """Returns what is kept of documents, which are lists of (sentence, ids), and pairs of repeated and first ones."""
    part = str(tmp_path / "part")
    id_dtype = np.dtype(np.uint16)
    with DocumentExaminer(CleaningOptions(**options), part, id_dtype, first_key=0, run_records=5) as examiner:
        for number, sentences in enumerate(documents):
            for line, (sentence, ids) in enumerate(sentences):
                examiner.add(sentence, np.asarray(ids, id_dtype).tobytes(), (number, line + 7))
            examiner.end_document()
    keys, signatures = gather(runs_of(part, examiner.signatures.runs), 0, 1 << 64, SIGNATURE)
    repeats = first_of_each(*find_duplicates(keys, signatures))
    return np.fromfile(documents_file(part), DOCUMENT), list(zip(*(column.tolist() for column in repeats), strict=True))


@pytest.mark.parametrize("together", [1, 10, 100])
def test_documents_of_the_same_pieces_repeat_the_earliest_one(tmp_path, monkeypatch, together):
    monkeypatch.setattr(cleaning, "_SIGNATURES_TOGETHER", together)
    add = RunWriter.add
    lengths = []
    monkeypatch.setattr(RunWriter, "add", lambda self, keys, *more: (lengths.append(len(keys)), add(self, keys, *more)))
    documents = [[("", [1, 2]), ("", [3])], [("", [1, 2, 4])], [("", [1]), ("", [2, 3])], [("", [1, 2, 3])]]
    documents += [[("", [number])] for number in range(10, 30)] + [[("", [1, 2, 4])]]
    found, repeats = examine(tmp_path, documents, remove_duplicates="exact")
    assert repeats == [(2, 0), (3, 0), (24, 1)]
    assert max(lengths) == min(together, 25) and sum(lengths) == 25
    assert found["piece"].tolist() == list(range(25)) and set(found["line"].tolist()) == {7}
    assert examine(tmp_path, documents, min_document_chars=0)[1] == []


def test_similar_documents_repeat_the_earliest_one(tmp_path, monkeypatch):
    pytest.importorskip("datasketch")
    rng = np.random.default_rng(0)
    original = rng.integers(0, 30000, 400)
    similar, other = original.copy(), original.copy()
    similar[[50, 51, 300]] = 7  # 11 of 396 runs of five differ
    other[::4] = 7
    documents = [[("", ids)] for ids in (original, rng.integers(0, 30000, 400), similar, other, [5, 6], original[:300])]
    documents += [[("", [5, 6])], [("", [5, 7])], [("", part) for part in np.split(original, [1, 3, 200, 203])]]
    expected = [(2, 0), (6, 4), (8, 0)]
    assert [pair for pair in examine(tmp_path, documents, remove_duplicates="near")[1] if pair[0] != 5] == expected
    monkeypatch.setattr(cleaning, "_PIECES_TOGETHER", 3)
    assert [pair for pair in examine(tmp_path, documents, remove_duplicates="near")[1] if pair[0] != 5] == expected


def test_short_documents_are_compared_with_none(tmp_path):
    documents = [[("abc", [1])], [("abc", [1]), ("d", [2])], [("abcd", [1, 2])]]
    found, repeats = examine(tmp_path, documents, min_document_chars=4, remove_duplicates="exact")
    assert [cleaning.REASONS[reason] for reason in found["reason"]] == ["too short", "", ""]
    assert repeats == [(2, 1)]


def test_documents_in_other_languages(tmp_path):
    pytest.importorskip("py3langid")
    documents = [[(text, [1])] for text in (ENGLISH, GERMAN)] + [[(word, [1]) for word in GERMAN.split()]]
    found, _ = examine(tmp_path, documents, keep_languages=("en", "fr"))
    assert [cleaning.REASONS[reason] for reason in found["reason"]] == ["", *["in another language"] * 2]
    assert found["language"].tolist() == [b"en", b"de", b"de"]
    with pytest.raises(InputError, match=r"--keep_languages: xx is not known\. Codes of languages are expected: .*en"):
        CleaningOptions(keep_languages=("en", "xx"))


def test_options_are_checked():
    with pytest.raises(InputError, match="--min_document_chars is -1"):
        CleaningOptions(min_document_chars=-1)
    assert not CleaningOptions().is_needed and CleaningOptions(min_document_chars=1).is_needed


def test_keys_of_documents_rise_with_the_parts():
    for parts in (1, 3, 64, 1000):
        ranges = [document_keys(part, parts) for part in range(parts)]
        assert ranges[0][0] == 0 and ranges[-1][1] == 1 << 64
        for part, (first, end) in enumerate(ranges):
            assert part_of_key(first, parts) == part_of_key(first + 1000, parts) == part_of_key(end - 1, parts) == part
