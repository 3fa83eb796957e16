import json
from typing import NotRequired, TypedDict

import numpy as np
import pytest

from bert_tf.runtime import files, json_files, messages
from tests.conftest import assert_refused


class Part(TypedDict):
    records: int
    share: NotRequired[float | None]
    names: NotRequired[list[str]]


@pytest.mark.parametrize(
    ("text", "kind", "place", "field"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', dict, "", "'c'"),
        ("[" * 100_000, list, "", "recursion"),
        ("-" + "1" * 5000, int, "", "digits"),
        ("[Infinity]", list, "", "Infinity"),
        ("[1,\n2", list, "line 2, column 2", ""),
        ('"\t"', str, "column 2", ""),
        ("{}", Part, "", "records"),
        ('[{"records": 3}]', Part, "", "object"),
        ('{"records": true}', Part, "at records", "int"),
        ('{"records": 1.5}', Part | None, "at records", "int"),
        ('{"records": 1, "share": "x"}', Part, "at share", "float"),
        ('{"records": 1, "names": ["a", 5]}', Part, r"at names\[1\]", "str"),
        ('{"a": [1, null]}', dict[str, list[int]], r"at \[...\]\[1\]", "null"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_what_is_not_read(text, kind, place, field, write):
    path = write("x.json", text)
    assert_refused(f"^--flag: {path}(, |: ){place}.*{field}", json_files.read, path, "--flag", kind)


def test_what_is_read(write):
    assert json_files.read(write("bom.json", "\ufeff[1]"), "--flag", list[int]) == [1]
    part = {"records": 3, "share": 1, "other": {}}
    assert json_files.read(write("part.json", json.dumps(part)), "--flag", Part | None) == part
    assert [value for value in (1, 0.5, True, "1", None, float("nan")) if json_files.is_number(value)] == [1, 0.5]


def test_a_torn_last_line_is_left_out_and_a_damaged_one_before_it_is_named(write, capsys):
    def read(text):
        path = write("lines.jsonl", text)
        messages.say_once.cache_clear()
        return json_files.read_lines(path, "--flag", dict[str, int])

    assert json_files.read_lines("nowhere", "--flag") == []
    assert read("") == []
    assert read('{"a": 1}\n{"a": 2}\n') == read('{"a": 1}\n{"a": 2}') == [{"a": 1}, {"a": 2}]
    assert capsys.readouterr().err == ""
    for torn in ('{"a"', "[]", "\n", "\0\0\0"):
        assert read('{"a": 1}\n' + torn) == [{"a": 1}]
        assert "line 2 (the last) is incomplete" in capsys.readouterr().err
        assert_refused(r"lines.jsonl, line 2: ", read, '{"a": 1}\n' + torn.strip("\n") + '\n{"a": 2}\n')
    assert json_files.read_lines(write("nan.jsonl", "[NaN]\n"), "--flag") != []


def test_numbers_of_numpy_are_written_as_pythons(tmp_path):
    path = str(tmp_path / "settings.json")
    files.write_json(path, {"batch_size": np.int64(4), "share": np.float32(0.5), "cased": np.bool_(True)})
    assert json_files.read(path, "--flag") == {"batch_size": 4, "share": 0.5, "cased": True}


def test_a_toml_file_is_read_or_named(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('a = 1\n[b]\nc = "x"\n')
    assert json_files.read_toml(str(path), "--settings") == {"a": 1, "b": {"c": "x"}}
    path.write_text("a = \n")
    assert_refused(f"--settings: {path}: .*line 1", json_files.read_toml, str(path), "--settings")
    assert_refused(r"--settings: .*'none", json_files.read_toml, "none.toml", "--settings")
