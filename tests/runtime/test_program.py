import errno
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from bert_tf.runtime import errors, path_checks, signals
from bert_tf.runtime.files import InputError
from tests.conftest import ROOT

PROGRAM = """
'''Does something.'''
import sys
from absl import flags
from bert_tf.runtime import program, signals
from bert_tf.runtime.errors import InputError

program.section("Files")
flags.DEFINE_string("input_file", None, "A file.")
program.section("Work")
flags.DEFINE_integer("zeal", 1, "Much or little.")
program.section("Files")
flags.DEFINE_string("also", None, "Another file.")

def main():
    {main}

if __name__ == "__main__":
    program.run(main)
"""


def run(main, *arguments):
    """Runs a program with the given body of `main`."""
    command = [sys.executable, "-c", PROGRAM.format(main=main), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


LINK = "raise OSError(18, 'Invalid cross-device link', 'a', None, 'b')"
LISTEN = """program.on_failure(lambda error: print("heard of", error, file=sys.stderr))
    program.on_failure(lambda error: f"explained {error}" if isinstance(error, RuntimeError) else None)
    """


@pytest.mark.parametrize(
    ("main", "status", "start"),
    [
        ("raise InputError('--flag is 1, but 2 is expected.')", 1, "error: --flag is 1, but 2 is expected.\n"),
        ("raise OSError(28, 'No space left on device', 'out/x')", 1, "error: out/x: No space left on device. "),
        (LINK, 1, "error: a -> b: Invalid cross-device link. "),
        ("raise MemoryError", 1, "error: Out of memory. "),
        ("raise KeyboardInterrupt", 130, "\nInterrupted.\n"),
        ("raise RuntimeError('a bug')", 1, "Traceback"),
        (f"{LISTEN}raise RuntimeError('a')", 1, "heard of a\nerror: explained a\n"),
        (f"{LISTEN}raise InputError('a')", 1, "heard of a\nerror: a\n"),
    ],
    ids=["input", "disk", "link", "memory", "keyboard", "bug", "explained bug", "listened input"],
)
def test_an_error_that_the_user_can_solve_is_one_line(main, status, start):
    ended = run(main)
    assert ended.returncode == status and ended.stderr.startswith(start)
    assert ended.stderr.strip().count("\n") == start.strip().count("\n") or start == "Traceback"


def test_tensorflows_errors_of_the_system_are_explained():
    for number in (errno.ENOSPC, errno.EFBIG, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG):
        words = os.strerror(number)
        told = errors.explanation(tf.errors.UnknownError(None, None, f"a/b; {words}\n\t [[node]]"))
        assert told.startswith(f"a/b: {words}. ")
        eager = tf.errors.UnknownError(None, None, f"{{{{function_node __wrapped__SaveV2}}}} a/b; {words} [Op:SaveV2]")
        assert errors.explanation(eager) == told
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
    ended = run("pass", b"--input_file=caf\xe9")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the argument '--input_file=caf\\udce9' contains bytes that are not UTF-8")
    open(os.fsencode(tmp_path) + b"/caf\xe9", "w").close()
    with pytest.raises(InputError, match=r"--input_file: the file '.*caf.udce9' contains bytes"):
        path_checks.expand_patterns(f"{tmp_path}/*", "--input_file")


def test_a_reader_that_ends_early_is_named():
    command = [sys.executable, "-c", PROGRAM.format(main="print('x' * 1_000_000)")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ended:
        ended.stdout.close()
        printed = ended.stderr.read()
    assert printed.startswith("error: standard output: Broken pipe")
    assert (ended.returncode, printed.count("\n")) == (1, 1)


@pytest.mark.parametrize("main", ["print('x')", "print('x' * 1_000_000)", "program.sys.stdout.write('x')"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_at_standard_output_is_named(main, unbuffered):
    command = [sys.executable, "-c", PROGRAM.format(main=main)]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert ended.stderr.startswith("error: standard output: No space left on device.")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)


def test_a_program_that_a_command_imports_has_its_own_flags(tmp_path):
    (tmp_path / "imported.py").write_text(PROGRAM.format(main="print(program.flag_values())"))
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import imported as i; i.program.run(i.main, ['also'])"

    def run_command(*arguments):
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)

    assert run_command("--also=x").stdout == "{'input_file': None, 'zeal': 1, 'also': 'x'}\n"
    assert "--also" in run_command().stderr and run_command().returncode == 1
    assert "  --zeal: Much or little." in run_command("--help").stdout


def test_help_shows_flags_in_their_sections():
    shown = run("pass", "--help").stdout
    assert shown.startswith(
        "Does something.\n\nflags:\n\nFiles:\n  --also: Another file.\n  --input_file: A file.\n\nWork:\n"
    )
    assert shown.count("--zeal") == 1 and "--verbosity" not in shown


def test_what_an_error_held_is_removed_before_python_ends():
    """Otherwise an iterator that reads data with a Python function would wait forever for the function."""
    main = """
    class Held:
        def __init__(self):
            self.itself = self

        def __del__(self):
            print("removed", "late" if sys.is_finalizing() else "in time")

    held = Held()
    raise InputError(str(held))
"""
    ended = run(main)
    assert (ended.returncode, ended.stdout) == (1, "removed in time\n")


def test_a_program_that_is_called_writes_its_log(tmp_path):
    log = tmp_path / "log.txt"
    print_all = "import sys; print('out'); print('err', file=sys.stderr); print(sys.stdin.read())"
    for _ in range(2):
        signals.call([sys.executable, "-c", print_all], str(log), "the writer")
    assert sorted(log.read_text().split()) == ["err", "err", "out", "out"]
    fail = "import sys; print('\\n'.join('abcdefgh') + '\\r99%'); sys.exit(3)"
    with pytest.raises(InputError) as raised:
        signals.call([sys.executable, "-c", fail], str(log), "the failure")
    lines = str(raised.value).splitlines()
    assert lines[0] == f"the failure ended with exit status 3. The end of {log}:"
    assert lines[1:] == ["  d", "  e", "  f", "  g", "  h", "  99%"]


SIGTERMS = """
import os, signal, threading, time
from bert_tf.runtime import program, signals

def stop_after(seconds):
    while signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        pass
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGTERM)

for trial in range(40):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    thread = threading.Thread(target=stop_after, args=[trial * 75e-6])
    thread.start()
    try:
        signals.call(["sleep", "60"], os.devnull, "x")
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
    assert done.stdout.split("\n") == ["stopped", "no child"] * 40 + [""], done.stderr
