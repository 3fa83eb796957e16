import os
import signal
import socket
import subprocess
import sys

import pytest

from bert_tf.runtime.files import InputError
from bert_tf.runtime.storage import locks

OWNER = """
import sys, time
from bert_tf.runtime.storage import locks
with locks.claimed(sys.argv[1], "--output_dir"):
    print("claimed", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_told_who_has_claimed_the_directory_until_that_one_is_killed(tmp_path):
    directory = str(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", OWNER, directory], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "claimed\n"
        with pytest.raises(
            InputError, match=f"process {owner.pid} on {socket.gethostname()} is training in {directory} at"
        ):
            locks.require_free(directory, "--output_dir")
        owner.send_signal(signal.SIGKILL)
    for _ in range(2):
        locks.require_free(directory, "--output_dir")
    with locks.claimed(directory, "--output_dir"), pytest.raises(InputError, match=f"process {os.getpid()} on"):
        locks.require_free(directory, "--output_dir")
    assert os.listdir(directory) == ["run.lock"]


def test_a_file_system_without_locks_is_used_without_claims(tmp_path, monkeypatch):
    import fcntl

    def fail(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", fail)
    with locks.claimed(str(tmp_path), "--output_dir"):
        locks.require_free(str(tmp_path), "--output_dir")
