import os
import signal

import pytest

from bert_tf.runtime import parallel
from bert_tf.runtime.files import InputError


@pytest.mark.parametrize("workers", [1, 2])
def test_chunks_come_back_in_order(workers):
    base = 1000  # a lambda that refers to it can't be pickled
    chunks = parallel.map_chunks(lambda chunk: [base + x for x in chunk], range(23), workers, smallest_chunk=5)
    assert [x for chunk in chunks for x in chunk] == [1000 + x for x in range(23)]
    assert len(chunks) == (1 if workers == 1 else 5)


def test_few_items_are_computed_without_another_process():
    assert parallel.map_chunks(lambda chunk: os.getpid(), range(400), 4) == [os.getpid()]


def test_errors_of_a_process_are_raised():
    def fail(chunk):
        raise InputError("file, line 3: bad")

    with pytest.raises(InputError, match="file, line 3: bad"):
        parallel.map_chunks(fail, range(20), 2, smallest_chunk=5)


def test_a_killed_process_is_reported():
    with pytest.raises(InputError, match="a process was killed, most likely because memory ran out"):
        parallel.map_chunks(lambda chunk: os.kill(os.getpid(), signal.SIGKILL), range(20), 2, smallest_chunk=5)


def test_negative_numbers_of_workers_are_refused():
    with pytest.raises(InputError, match="--num_workers is -1"):
        parallel.map_chunks(len, range(3), -1)
