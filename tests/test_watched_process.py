import sys

import pytest

from benchmarks.watched_process import run_watched

ALLOCATE_AND_WAIT = """
import time
text = bytearray(30 << 20)
time.sleep(1)
"""


def test_what_a_command_needs_is_watched():
    needs = run_watched([sys.executable, "-c", ALLOCATE_AND_WAIT])
    assert needs.seconds > 1 and needs.processes == 1
    assert 30 << 20 < needs.memory < 200 << 20
    with pytest.raises(RuntimeError, match="nothing to see"):
        run_watched([sys.executable, "-c", "raise ValueError('nothing to see')"])
