import errno
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from bert_tf.runtime import errors, files, program
from bert_tf.runtime.files import InputError
from tests.conftest import ROOT

PROGRAM = """
from bert_tf.runtime import program
from bert_tf.runtime.files import InputError

def main():
    raise {error}

program.run(main)
"""


def run_program_that_raises(error):
    return subprocess.run([sys.executable, "-c", PROGRAM.format(error=error)], capture_output=True, text=True)


def test_an_input_error_is_one_line():
    program = run_program_that_raises("InputError('--flag is 1, but 2 is expected.')")
    assert (program.returncode, program.stderr) == (1, "error: --flag is 1, but 2 is expected.\n")


@pytest.mark.parametrize(
    ("error", "start"),
    [
        ("OSError(28, 'No space left on device', 'out/run.json')", "error: out/run.json: No space left on device. "),
        ("OSError(18, 'Invalid cross-device link', 'a', None, 'b')", "error: a -> b: Invalid cross-device link. "),
        ("MemoryError", "error: Out of memory. "),
    ],
)
def test_an_error_of_the_system_is_one_line_that_names_the_path(error, start):
    program = run_program_that_raises(error)
    assert program.returncode == 1
    assert program.stderr.startswith(start) and program.stderr.count("\n") == 1


def test_tensorflows_errors_of_the_system_are_explained():
    for number in (errno.ENOSPC, errno.EFBIG, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG):
        words = os.strerror(number)
        told = errors.explanation(tf.errors.UnknownError(None, None, f"a/b; {words}\n\t [[node]]"))
        assert told.startswith(f"a/b: {words}. ")
    for words in (
        "OOM when allocating tensor",
        "Ran out of memory in memory space hbm. Used 16.61G of 15.75G hbm.",
        "Attempting to allocate 1.50G. That was not possible. There are 1.20G free.",
    ):
        for kind in (tf.errors.ResourceExhaustedError, tf.errors.InternalError):
            assert "--gradient_checkpointing" in errors.explanation(kind(None, None, f"RESOURCE_EXHAUSTED: {words}"))
    for bug in (tf.errors.InternalError(None, None, "a; b"), OSError("of a library"), RuntimeError("a bug")):
        assert errors.explanation(bug) is None


def test_names_that_are_not_utf8_are_refused(tmp_path):
    with_flag = "from absl import flags\nflags.DEFINE_string('name', '', '')" + PROGRAM.format(error="ValueError")
    program = subprocess.run([sys.executable, "-c", with_flag, b"--name=caf\xe9"], capture_output=True, text=True)
    assert program.returncode == 1
    assert program.stderr.startswith("error: the argument '--name=caf\\udce9' contains bytes that are not UTF-8")
    open(os.fsencode(tmp_path) + b"/caf\xe9", "w").close()
    with pytest.raises(errors.InputError, match=r"--input_file: the file '.*caf.udce9' contains bytes"):
        files.expand_patterns(f"{tmp_path}/*", "--input_file")


def test_a_reader_that_ends_early_is_named():
    command = [sys.executable, "-c", PROGRAM.replace("raise {error}", "print('x' * 1_000_000)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        program.stdout.close()
        told = program.stderr.read()
    assert told.startswith("error: Broken pipe") and told.count("\n") == 1 and program.returncode == 1


def test_an_interruption_is_one_line():
    program = run_program_that_raises("KeyboardInterrupt")
    assert (program.returncode, program.stderr) == (130, "\nInterrupted.\n")


def test_a_bug_is_shown_with_its_traceback():
    program = run_program_that_raises("RuntimeError('a bug')")
    assert program.returncode == 1 and "Traceback" in program.stderr


def test_what_listens_to_failures_may_explain_them():
    program = """
from bert_tf.runtime import program
from bert_tf.runtime import errors

def main():
    program.on_failure(lambda error: print("heard of", error))
    program.on_failure(lambda error: "explained " + str(error) if isinstance(error, RuntimeError) else None)
    raise {error}

program.run(main)
"""
    for error, stderr in (
        ("RuntimeError('a')", "error: explained a\n"),
        ("errors.InputError('a')", "error: a\n"),
    ):
        ended = subprocess.run([sys.executable, "-c", program.format(error=error)], text=True, capture_output=True)
        assert (ended.returncode, ended.stdout, ended.stderr) == (1, "heard of a\n", stderr)


IMPORTED = """
from absl import flags
from bert_tf.runtime import program

SIZE = flags.DEFINE_integer("size", None, "A size.")

def main():
    print(program.flag_values())

def cli():
    program.run(main, required=["size"])
"""


def test_a_program_that_a_command_imports_knows_its_own_flags(tmp_path):
    (tmp_path / "imported.py").write_text(IMPORTED)

    def run(*arguments):
        command = [
            sys.executable,
            "-c",
            f"import sys; sys.path.append({str(tmp_path)!r}); import imported as i; i.cli()",
        ]
        return subprocess.run([*command, *arguments], capture_output=True, text=True)

    assert run("--size=3").stdout == "{'size': 3}\n"
    assert "--size" in run().stderr and run().returncode == 1
    assert "  --size: A size." in run("--help").stdout


def test_help_shows_flags_in_their_sections():
    program = """
'''Does something.'''

from absl import flags
from bert_tf.runtime import program

program.section("Files")
flags.DEFINE_string("input_file", None, "A file.")
program.section("Work")
flags.DEFINE_integer("zeal", 1, "Much or little.")
program.section("Files")
flags.DEFINE_string("also", None, "Another file.")

def main():
    pass

program.run(main)
"""
    shown = subprocess.run([sys.executable, "-c", program, "--help"], text=True, capture_output=True).stdout
    assert shown.startswith(
        "Does something.\n\nflags:\n\nFiles:\n  --also: Another file.\n  --input_file: A file.\n\nWork:\n"
    )
    assert shown.count("--zeal") == 1 and "--verbosity" not in shown


def test_what_an_error_held_is_removed_before_python_ends():
    """Otherwise an iterator whose data are read by a Python function waits for ever for that function."""
    holding = """
import sys

class Held:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("removed", "late" if sys.is_finalizing() else "in time")
"""
    program = holding + PROGRAM.format(error="InputError(str(held))").replace("raise", "held = Held()\n    raise")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "removed in time\n")


def test_a_program_that_is_called_writes_its_log(tmp_path):
    log = tmp_path / "log.txt"
    print_all = "import sys; print('out'); print('err', file=sys.stderr); print(sys.stdin.read())"
    for _ in range(2):
        program.call([sys.executable, "-c", print_all], str(log), "the writer")
    assert sorted(log.read_text().split()) == ["err", "err", "out", "out"]
    fail = "import sys; print('\\n'.join('abcdefgh') + '\\r99%'); sys.exit(3)"
    with pytest.raises(InputError) as raised:
        program.call([sys.executable, "-c", fail], str(log), "the failure")
    lines = str(raised.value).splitlines()
    assert lines[0] == f"the failure ended with exit status 3. The end of {log}:"
    assert lines[1:] == ["  d", "  e", "  f", "  g", "  h", "  99%"]


SIGTERMS = """
import os, signal, threading, time
from bert_tf.runtime import program

def stop_after(seconds):
    while signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        pass
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGTERM)

for trial in range(100):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    thread = threading.Thread(target=stop_after, args=[trial * 3e-5])
    thread.start()
    try:
        program.call(["sleep", "60"], os.devnull, "x")
    except KeyboardInterrupt:
        print("stopped")
    thread.join()
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        print("no child")
"""


def test_sigterm_ends_the_program_that_is_called_even_while_it_is_started():
    done = subprocess.run([sys.executable, "-c", SIGTERMS], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.stdout.split("\n") == ["stopped", "no child"] * 100 + [""], done.stderr


def test_the_arguments_of_another_program_are_checked(tmp_path):
    other = tmp_path / "other.py"
    other.write_text(
        "from absl import flags\nfrom bert_tf.runtime import program\nflags.DEFINE_integer('n', 1, '')\n"
        "def main():\n    raise SystemExit(5)\nprogram.run(main)\n"
    )
    command = [
        sys.executable,
        "-c",
        f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); del sys.argv[0]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')",
        str(other),
    ]
    program.check_arguments([*command, "--n=2"])
    with pytest.raises(InputError, match=rf"(?s){other} can't take these flags: .*Unknown command line flag 'm'"):
        program.check_arguments([*command, "--m=2"])
