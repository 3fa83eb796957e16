import pytest

from bert_tf.runtime import differences


def test_the_differences_of_nested_settings_are_named():
    before = {"a": 1, "b": {"c": [1, 2], "d": 3}, "gone": True}
    now = {"a": 1, "b": {"c": [1, 4, 5], "d": 3}, "new": "x"}
    assert differences.between(before, now) == [
        ("b: c 2", (2, 4)),
        ("b: c 3", (None, 5)),
        ("gone", (True, None)),
        ("new", (None, "x")),
    ]
    assert differences.changes(before, now)[0] == "b: c 2 was 2, and is 4 now"
    assert differences.between({"a": 1}, {"a": 1}, {"a": 2}) == [("a", (1, 1, 2))]
    assert differences.between(5, 6, name="seed") == [("seed", (5, 6))]
    assert differences.between([1, [2]], [1, [3]], name="x") == [("x 2 1", (2, 3))]
    assert differences.between([1, "b"], [1], [1, "c"], name="x") == [("x 2", ("b", None, "c"))]
    assert differences.between({"a": [1], "b": 2}, {"b": 2, "a": [1]}) == []


def test_a_long_list_is_cut():
    assert differences.listed(["a", "b"]) == "a\n  b"
    assert differences.listed([str(i) for i in range(25)]).splitlines()[-2:] == ["  19", "  and 5 more"]


@pytest.mark.parametrize("pattern", ["directory", "directory/*.txt", "d*"])
def test_a_fingerprint_is_of_the_names_and_the_contents(tmp_path, monkeypatch, pattern):
    monkeypatch.setattr(differences, "_FINGERPRINT_BYTES", 4)
    (tmp_path / "directory" / "inside").mkdir(parents=True)
    found = [differences.fingerprint(str(tmp_path / pattern))]
    one, two = (tmp_path / "directory" / name for name in ("1.txt", "2.txt"))
    for text in ("abcdef", "abcdeX", "Xbcdef", "Xbcde"):
        one.write_text(text)
        found.append(differences.fingerprint(str(tmp_path / pattern)))
    one.rename(two)
    found.append(differences.fingerprint(str(tmp_path / pattern)))
    assert found.pop(2) == found[1]  # only the first bytes are read
    assert len(set(found)) == len(found) == 5


def test_a_fingerprint_is_that_by_which_finished_runs_are_found(tmp_path):
    (tmp_path / "a").write_text("text\n")
    assert differences.fingerprint(str(tmp_path / "a")) == "0090c8937872"
