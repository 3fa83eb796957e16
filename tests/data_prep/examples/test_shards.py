import pytest

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from data_prep.examples.shards import PartialShard

CONTENTS = [b"first", b"", b"the third", b"4"]


@pytest.fixture
def buckets(tmp_path):
    paths = [tmp_path / f"bucket-{i}" for i in range(len(CONTENTS))]
    for path, content in zip(paths, CONTENTS, strict=True):
        path.write_bytes(content)
    return paths


def grow(tmp_path, buckets, order):
    shard = PartialShard(str(tmp_path / "shard"), list(map(str, buckets)))
    for number in order:
        shard.add(number, len(CONTENTS[number]))
    return shard


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 3, 1, 0]])
def test_joins_in_their_order_in_whatever_order_they_come(tmp_path, buckets, order):
    shard = grow(tmp_path, buckets, order)
    assert (tmp_path / "shard").read_bytes() == b"".join(CONTENTS)
    assert shard.size == len(b"".join(CONTENTS))
    assert not any(bucket.exists() for bucket in buckets)


def test_buckets_are_joined_as_soon_as_those_before_are_there(tmp_path, buckets):
    shard = grow(tmp_path, buckets, [2, 0])
    assert (tmp_path / "shard").read_bytes() == b"first" and shard.size == 5
    assert [bucket.exists() for bucket in buckets] == [False, True, True, True]


@pytest.mark.parametrize("joined", [0, 1, 2, 3])
@pytest.mark.parametrize("half_copied", [False, True])
def test_takes_up_what_a_crash_left(tmp_path, buckets, joined, half_copied, monkeypatch):
    """The crash is before the removal of a bucket that is in the shard already, or in the middle of its copy."""

    def crash(path):
        raise KeyboardInterrupt

    if joined:
        grow(tmp_path, buckets, range(joined))
    monkeypatch.setattr(files, "remove", crash)
    with pytest.raises(KeyboardInterrupt):
        grow(tmp_path, buckets, range(4))
    monkeypatch.undo()
    if half_copied:
        (tmp_path / "shard").write_bytes(b"".join(CONTENTS[:joined]) + CONTENTS[joined][:1])
    grow(tmp_path, buckets, range(4))
    assert (tmp_path / "shard").read_bytes() == b"".join(CONTENTS)


def test_lost_files_are_named(tmp_path, buckets):
    grow(tmp_path, buckets, [0, 1, 2])
    (tmp_path / "shard").write_bytes(b"first")
    with pytest.raises(InputError, match=r"bucket-2 was written, but is neither there nor in .*shard.*Remove"):
        grow(tmp_path, buckets, range(4))
