"""Runs Python programs in forks of one process that has already imported TensorFlow, which takes seconds.

`CommandServer.environment` puts a `python` on the PATH that sends its arguments, directory, environment and open files
to the server. The server runs the program as if `python` had started it, and the caller gets the exit status. SIGINT
and SIGTERM are passed on. SIGTSTP stops the program like SIGSTOP, which can't be passed on. If the caller is killed,
the program is killed too. Complete shell scripts therefore run unchanged.

Environment variables:

- SMALLER_FLAGS=1 adds the flags of `small_data.SMALLER` after the flags of the command, and draws no pictures.
- PLAIN_KERNELS=1 does not compile the CPU kernels, which would take longer than a small run, and draws no pictures.
- RUN_EAGERLY=1 builds no graphs if there is only one worker. Several workers need graphs.
- PARSE_ONLY=1 ends a program after it has parsed its flags.
"""

import argparse
import faulthandler
import functools
import gc
import json
import multiprocessing
import os
import pathlib
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
import traceback

from tests.documentation import small_data

ROOT = pathlib.Path(__file__).resolve().parent.parent
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Module -> the installed command that runs it.
CONSOLE_SCRIPTS = {name: target.partition(":")[0] for name, target in _PROJECT["scripts"].items()}
_READY = "ready"
_CLIENT = f"""#!{sys.executable} -SE
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(os.environ["COMMAND_SERVER"])
request = {{"arguments": sys.argv, "directory": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(server, [json.dumps(request).encode() + b"\\n"], [0, 1, 2])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGCONT):
    signal.signal(number, lambda number, _: server.sendall(bytes([number])))
status = server.recv(16)
sys.exit(int(status) if status else 70)
"""


class CommandServer:
    """The process of the server. It ends with this process. `running` returns the server that the tests share."""

    def __init__(self, *options: str) -> None:
        directory = pathlib.Path(tempfile.mkdtemp())
        self._socket = directory / "socket"
        self._programs = directory / "bin"
        self._programs.mkdir()
        for name in ("python", *CONSOLE_SCRIPTS):
            program = self._programs / name
            program.write_text(_CLIENT)
            program.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.command_server", str(self._socket), *options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline().strip() == _READY

    @property
    def python(self) -> str:
        """Returns the path of the program that replaces `python`."""
        return str(self._programs / "python")

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment of processes that must use the server's `python`."""
        path = f"{self._programs}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "COMMAND_SERVER": str(self._socket)}


running = functools.cache(CommandServer)
# Programs of this server fail if they import TensorFlow.
without_tensorflow = functools.cache(functools.partial(CommandServer, "tensorflow"))


def serve(path: str, *missing: str) -> None:
    """Answers requests until the client process ends, which closes the standard input."""
    sys.modules.update(dict.fromkeys(missing))
    if missing:
        import bert_tf.finetuning.finetuning_config
        import bert_tf.tasks.data_config  # noqa: F401
    else:
        _import_what_takes_long()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the children that answer
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print(_READY, flush=True)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection)
        connection.close()
    shutil.rmtree(pathlib.Path(path).parent)


def _import_what_takes_long() -> None:
    # Only libraries and modules without flags: each program defines its own flags when it is run.
    import matplotlib.pyplot  # noqa: F401
    import pandas  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import tensorboard.summary.v2  # noqa: F401

    import bert_tf.finetuning.run
    import bert_tf.graphs.pretrained
    import bert_tf.pretraining.run
    import bert_tf.tasks.registry  # noqa: F401
    from bert_tf.graphs.characters import character_rules

    shuffle_few_records()
    character_rules(do_lower_case=True, strip_accents=True, tokenize_chinese_chars=True)
    gc.freeze()  # otherwise a garbage collection in a child process copies all these objects


def shuffle_few_records() -> None:
    """Makes the shuffle window of pre-training small, because a large window opens tiny files hundreds of times."""
    from bert_tf.pretraining import input_pipeline

    input_pipeline._WINDOW_RECORDS = 64


def _answer(connection: socket.socket) -> None:
    """Runs a program in a child, passes signals on to it, and sends its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, open_files, *_ = socket.recv_fds(connection, 1 << 16, 3)
    while not message.endswith(b"\n"):
        message += connection.recv(1 << 16)
    child = os.fork()
    if child == 0:
        connection.close()
        _become(json.loads(message), open_files)
    for number in open_files:
        os.close(number)
    ended = os.pidfd_open(child)
    while ended not in (ready := select.select([ended, connection], [], [])[0]):
        assert ready
        number = next(iter(connection.recv(1)), signal.SIGKILL)
        os.kill(child, signal.SIGSTOP if number == signal.SIGTSTP else number)
    _, status = os.waitpid(child, 0)
    connection.sendall(str(abs(os.waitstatus_to_exitcode(status))).encode())
    os._exit(0)


def _become(request: dict, open_files: list[int]) -> None:
    for standard, number in enumerate(open_files):
        os.dup2(number, standard)
    # Programs that start others use the server too. Worker processes that `multiprocessing` starts do not.
    multiprocessing.set_executable(sys.executable)
    sys.executable = str(pathlib.Path(request["arguments"][0]).with_name("python"))
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    faulthandler.dump_traceback_later(900, exit=True)  # a program that hangs prints its stack
    status: object = 1
    try:
        _run_program(*request["arguments"])
        status = 0
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status or 0))


def _run_program(program: str, *arguments: str) -> None:
    """Runs a program like `python ARGUMENTS`, or an installed console script."""
    name = pathlib.Path(program).name
    if name in CONSOLE_SCRIPTS:
        arguments = ("-m", CONSOLE_SCRIPTS[name], *arguments)
    if arguments[0] in ("-", "-c"):
        script, *rest = arguments[1:] if arguments[0] == "-c" else (sys.stdin.read(), *arguments[1:])
        sys.argv = [arguments[0], *rest]
        exec(script, {"__name__": "__main__"})
        return
    is_module = arguments[0] == "-m"
    target, *rest = arguments[1:] if is_module else arguments
    if os.environ.get("SMALLER_FLAGS") or os.environ.get("PLAIN_KERNELS"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg.print_png = lambda *_, **__: None
    if os.environ.get("SMALLER_FLAGS"):
        rest += small_data.smaller_flags(target.removesuffix(".py"), rest)
    if os.environ.get("PLAIN_KERNELS"):
        from bert_tf.model import cpu_kernels

        cpu_kernels.apply_to = lambda x: False
    if os.environ.get("RUN_EAGERLY") and "TF_CONFIG" not in os.environ:
        import tensorflow as tf

        tf.config.run_functions_eagerly(True)
    if os.environ.get("PARSE_ONLY"):
        _let_programs_end_when_flags_are_parsed()
    sys.argv = [target, *rest]
    sys.path.insert(0, str(pathlib.Path.cwd()) if is_module else str(pathlib.Path(target).resolve().parent))
    if is_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(target, run_name="__main__")


def _let_programs_end_when_flags_are_parsed() -> None:
    from absl import app, flags

    def parse(*_: object, **options: object) -> None:
        flags.FLAGS(sys.argv)
        sys.exit(0)

    app.run = parse
    parse_arguments = argparse.ArgumentParser.parse_args

    def parse_arguments_only(parser, *arguments, **options) -> None:
        parse_arguments(parser, *arguments, **options)
        sys.exit(0)

    argparse.ArgumentParser.parse_args = parse_arguments_only


if __name__ == "__main__":
    serve(*sys.argv[1:])
