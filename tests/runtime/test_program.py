import subprocess
import sys

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


def test_a_full_disk_is_one_line():
    program = run_program_that_raises("OSError(28, 'No space left on device', 'out/run.json')")
    assert program.returncode == 1
    assert program.stderr.startswith("error: [Errno 28] No space left on device: 'out/run.json'. ")
    assert program.stderr.count("\n") == 1
    program = run_program_that_raises("FileNotFoundError(2, 'No such file', 'ours')")
    assert program.returncode == 1 and "Traceback" in program.stderr


def test_an_interruption_is_one_line():
    program = run_program_that_raises("KeyboardInterrupt")
    assert (program.returncode, program.stderr) == (130, "\nInterrupted.\n")


def test_a_bug_is_shown_with_its_traceback():
    program = run_program_that_raises("RuntimeError('a bug')")
    assert program.returncode == 1 and "Traceback" in program.stderr


def test_what_listens_to_failures_may_explain_them():
    program = """
from bert_tf.runtime import program

def main():
    program.on_failure(lambda error: print("heard of", error))
    program.on_failure(lambda error: "explained " + str(error) if isinstance(error, RuntimeError) else None)
    raise {error}

program.run(main)
"""
    for error, stderr in (
        ("RuntimeError('a')", "error: explained a\n"),
        ("program.InputError('a')", "error: a\n"),
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
