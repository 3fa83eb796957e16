from typing import Any, NotRequired, TypedDict

import numpy as np
import pytest

from bert_tf.runtime import files, json_files, program
from bert_tf.runtime.files import InputError


class Part(TypedDict):
    records: int
    share: NotRequired[float | None]
    names: NotRequired[list[str]]
    counts: NotRequired[dict[str, int]]


@pytest.mark.parametrize(
    ("value", "kind", "problem"),
    [
        ({"records": 3, "share": None, "other": object}, Part, ""),
        ({"records": 3, "share": 1, "names": ["a"], "counts": {"b": 2}}, Part | None, ""),
        (None, Part | None, ""),
        (3, Any, ""),
        ([{"records": 3}], Part, "[{'records': 3}] was found, but an object is expected"),
        ({}, Part, "the key 'records' is missing"),
        ({"records": True}, Part, "at records, True was found, but a whole number is expected"),
        ({"records": 1.0}, Part | None, "at records, 1.0 was found, but a whole number is expected"),
        ({"records": 1, "share": "x"}, Part, 'at share, "x" was found, but a finite number or null is expected'),
        (
            {"records": 1, "share": float("nan")},
            Part,
            "at share, nan was found, but a finite number or null is expected",
        ),
        ({"records": 1, "names": ["a", 5]}, Part, "at names.1, 5 was found, but text is expected"),
        ({"records": 1, "counts": {"b": "2"}}, Part, 'at counts.b, "2" was found, but a whole number is expected'),
        (1, bool, "1 was found, but true or false is expected"),
    ],
)
def test_a_value_is_checked_against_a_type_hint(value, kind, problem):
    assert json_files.problem(value, kind) == problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', 'the key "c" occurs twice'),
        ("[" * 101 + "]" * 101, "nested more than 100 deep"),
        ("[" * 100_000, "nested more than 100 deep"),
        ("-" + "1" * 1001, "a number has 1002 digits, but at most 1000"),
        ("1e999", "the number 1e999 is too large"),
        ("0." + "1" * 5000, "the number 0.1111.* is too large or too long"),
        ("[Infinity]", "Infinity is not valid JSON"),
        ("[1,\n2", "line 2, column 2: not valid JSON"),
        ('"\t"', "column 2: not valid JSON"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_not_read(text, message, write):
    with pytest.raises(InputError, match=f"^{message}"):
        json_files.parse(text)
    path = write("x.json", text)
    with pytest.raises(InputError, match=f"^--flag: {path}, {message}"):
        json_files.read(path, "--flag")


def test_what_is_read(write):
    assert json_files.parse("[" * 100 + "]" * 100)
    assert json_files.parse('{"a": [{}, {}' + ", {}" * 200 + "]}")
    assert json_files.read(write("bom.json", "\ufeff[1]"), "--flag", list[int]) == [1]


def test_a_file_of_another_kind_is_named(write, monkeypatch):
    path = write("x.json", '{"a": [1, null]}')
    with pytest.raises(InputError, match=f"--flag: {path}: at a.1, None was found, but a whole number is expected"):
        json_files.read(path, "--flag", dict[str, list[int]])
    monkeypatch.setattr(json_files, "_MAX_BYTES", 3)
    with pytest.raises(InputError, match=f"{path} has 16 bytes, but settings of at most 3"):
        json_files.read(path, "--flag")
    assert json_files.read(path, "--flag", is_data=True)


def test_a_torn_last_line_is_left_out_and_a_damaged_one_before_it_is_named(write, capsys):
    def read(text):
        path = write("lines.jsonl", text)
        program.say_once.cache_clear()
        return json_files.read_lines(path, "--flag", dict[str, int])

    assert json_files.read_lines("nowhere", "--flag") == []
    assert read("") == []
    assert read('{"a": 1}\n{"a": 2}\n') == read('{"a": 1}\n{"a": 2}') == [{"a": 1}, {"a": 2}]
    assert capsys.readouterr().err == ""
    for torn in ('{"a"', "[]", "\n", "\0\0\0"):
        assert read('{"a": 1}\n' + torn) == [{"a": 1}]
        assert "line 2, the last, is incomplete" in capsys.readouterr().err
        with pytest.raises(InputError, match=r"lines.jsonl, line 2: .*The file is damaged there"):
            read('{"a": 1}\n' + torn.strip("\n") + '\n{"a": 2}\n')
    assert json_files.read_lines(write("nan.jsonl", "[NaN]\n"), "--flag") != []


def test_numbers_of_numpy_are_written_as_pythons(tmp_path):
    path = str(tmp_path / "settings.json")
    files.write_json(path, {"batch_size": np.int64(4), "share": np.float32(0.5), "cased": np.bool_(True)})
    assert json_files.read(path, "--flag") == {"batch_size": 4, "share": 0.5, "cased": True}
    with pytest.raises(TypeError, match="can't be written as JSON"):
        files.write_json(path, {"batch_size": {1}})


def test_a_toml_file_is_read_or_named(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text('a = 1\n[b]\nc = "x"\n')
    assert json_files.read_toml(str(path), "--settings") == {"a": 1, "b": {"c": "x"}}
    path.write_text("a = \n")
    with pytest.raises(InputError, match=f"--settings: {path}: not valid TOML: .*line 1"):
        json_files.read_toml(str(path), "--settings")
    with pytest.raises(InputError, match="--settings: there is no file 'none"):
        json_files.read_toml("none.toml", "--settings")


def test_a_variant_has_keys_of_its_own_at_any_depth():
    values = {"a": 1, "at": {"big": {"a": 2}}, "list": [{"b": {"at": {"big": {"c": 4}}, "c": 3, "d": 5}}]}
    assert json_files.variant(values, "small", ["small", "big"], "x") == {"a": 1, "list": [{"b": {"c": 3, "d": 5}}]}
    assert json_files.variant(values, "big", ["small", "big"], "x") == {"a": 2, "list": [{"b": {"c": 4, "d": 5}}]}
    with pytest.raises(InputError, match=r"x: list\[0\]: b: at: unknown key 'big'; there are small, large\."):
        json_files.variant({"list": values["list"]}, "small", ["small", "large"], "x")
    with pytest.raises(InputError, match="x: at: at big, 1 was found, but an object is expected"):
        json_files.variant({"at": {"big": 1}}, "big", ["big"], "x")
