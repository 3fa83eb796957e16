import io
import json
import stat
import zipfile

import huggingface_hub.constants
import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import constants

import bert_tf
from bert_tf import convert_checkpoint
from bert_tf.checkpoints import download, pretrained, reading, run_directory, run_record
from bert_tf.config import ModelFiles
from bert_tf.encoder import BertEncoder
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from tests.checkpoints.hub_server import hub_server
from tests.checkpoints.legacy import writers
from tests.conftest import assert_refused, tensors_of, tiny_config, tokenizer_json
from tests.finished_runs import write_model
from tests.programs import PIECES

NAME = "someone/tiny-bert"


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Returns the directory of a tiny model in the original format."""
    directory = tmp_path_factory.mktemp("released")
    write_model(directory, BertEncoder(tiny_config(vocab_size=len(PIECES))))
    return directory


@pytest.fixture(scope="module")
def model(released, tmp_path_factory):
    """Returns the names and contents of the model's files in a repository."""
    directory = tmp_path_factory.mktemp("hf") / "converted"
    convert_checkpoint.convert(str(released), str(directory), "hf")
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    return files | {"README.md": b"a card", "pytorch_model.bin": b"a pickle"}


@pytest.fixture
def hub(model, tmp_path, monkeypatch):
    """Returns a server with the model, and sets an empty cache."""
    download._snapshot.cache_clear()
    with hub_server() as server:
        server.repositories[NAME] = dict(model)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "assets"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield server
        huggingface_hub.close_session()


def error(path):
    with pytest.raises(InputError) as raised:
        reading.find_checkpoint(path)
    text = str(raised.value)
    assert "\n" not in text
    return text


def go_offline(monkeypatch):
    download._snapshot.cache_clear()
    huggingface_hub.close_session()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_repository_is_loaded_by_its_name_and_later_without_the_network(hub, released, monkeypatch):
    bert = bert_tf.load_model(NAME)
    np.testing.assert_equal(tensors_of(NAME), tensors_of(released))
    config, tokenizer = pretrained.read_model(ModelFiles(NAME))  # as programs do
    assert (config, tokenizer.vocab) == (bert.config, bert.tokenizer.vocab)
    assert not hub.asked("GET", "README.md") and not hub.asked("GET", "pytorch_model.bin")
    asked = len(hub.requests)
    assert bert_tf.load_model(NAME).source.path == bert.source.path
    assert len(hub.requests) == asked
    go_offline(monkeypatch)
    for name in (NAME, f"hf://{NAME}", f"hf://{NAME}@{hub.commit(NAME)}"):
        assert reading.find_checkpoint(name) == bert.source.path
    assert "the Hugging Face Hub can't be reached (OfflineModeIsEnabled" in error("someone/other")
    assert len(hub.requests) == asked


def test_a_vocabulary_may_be_in_tokenizer_json(hub):
    del hub.repositories[NAME]["vocab.txt"]
    assert_refused(f"load.*: no vocab.txt or tokenizer.json next to .*{hub.commit(NAME)}", bert_tf.load_tokenizer, NAME)
    download._snapshot.cache_clear()
    hub.repositories[NAME]["tokenizer.json"] = json.dumps(tokenizer_json(PIECES)).encode()
    assert list(bert_tf.load_tokenizer(NAME).vocab) == PIECES


def test_a_revision_is_loaded_and_a_wrong_one_is_an_error(hub):
    directory = download.local_path(f"hf://{NAME}@v1")
    assert directory.endswith(hub.commit(NAME)) and hub.asked("GET", f"{NAME}/revision/v1")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("runs/mprc", "--init_checkpoint: runs/mprc: neither a local path nor a repository"),
        (f"hf://{NAME}@v2", f"--init_checkpoint: {NAME}@v2: neither a local path nor a repository and revision"),
        ("hf://tiny-bert", "Use hf://owner/name or hf://owner/name@revision"),
        (f"hf://{NAME}@", "Use hf://owner/name or hf://owner/name@revision"),
        (f"hf://{NAME}/model.safetensors", "Use hf://owner/name or hf://owner/name@revision"),
        ("https://example.org/uncased.tar", "scheme 'https'"),
    ],
)
def test_wrong_names_are_errors(hub, name, expected):
    assert expected in error(name)


def test_a_path_is_not_looked_up_in_the_hub(hub, tmp_path, monkeypatch):
    asked = len(hub.requests)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in ("runs/mprc", "other/model.ckpt-100", "other/model.safetensors", "tiny-bert", "a/b/c", "./a"):
        assert f"there is no checkpoint {path!r}" in error(path)
    assert "hf://owner/name" in error("runs/mprc") and len(hub.requests) == asked


def test_the_token_opens_a_gated_repository(hub, monkeypatch):
    hub.gated.add(NAME)
    assert "HF_TOKEN" in error(NAME)
    monkeypatch.setenv("HF_TOKEN", "good")
    assert download.local_path(NAME)
    assert {request[3] for request in hub.asked("GET", "model.safetensors")} == {"Bearer good"}


def test_other_weights_are_downloaded_only_without_safetensors(hub, model, released, tmp_path):
    writers.write_bin(tmp_path / "weights", tensors_of(released))
    hub.repositories[NAME]["pytorch_model.bin"] = (tmp_path / "weights").read_bytes()
    assert reading.find_checkpoint(NAME).endswith("model.safetensors")
    assert not hub.asked("GET", "pytorch_model.bin")
    del hub.repositories[NAME]["model.safetensors"]
    download._snapshot.cache_clear()
    assert reading.find_checkpoint(NAME).endswith("pytorch_model.bin")
    np.testing.assert_equal(tensors_of(f"hf://{NAME}"), tensors_of(released))


def test_a_repository_without_weights_is_refused(hub):
    for name in ("model.safetensors", "pytorch_model.bin"):
        del hub.repositories[NAME][name]
    assert f"{NAME}: the repository has none of model.safetensors, " in error(NAME)


def test_a_transfer_that_breaks_for_good_is_an_error_and_leaves_no_half_file(hub, model, tmp_path):
    hub.broken["model.safetensors"] = [1000, *[0] * 20]
    assert f"{NAME}: the download failed" in error(NAME)
    assert not list(tmp_path.rglob("model.safetensors"))
    hub.broken.clear()
    with open(reading.find_checkpoint(NAME), "rb") as reader:
        assert reader.read() == model["model.safetensors"]


def test_an_unreachable_server_is_an_error(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "not in the cache, and the Hugging Face Hub can't be reached (ConnectError" in error(NAME)


def test_weights_in_several_files_are_read(hub, released):
    tensors = safetensors.numpy.load(hub.repositories[NAME].pop("model.safetensors"))
    shard_of = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for shard in sorted(set(shard_of.values())):
        part = {name: tensors[name] if shard_of[name] == shard else tensors[name] * 2 for name in tensors}
        hub.repositories[NAME][shard] = safetensors.numpy.save(part)
    hub.repositories[NAME]["model.safetensors.index.json"] = json.dumps({"weight_map": shard_of}).encode()
    assert reading.find_checkpoint(NAME).endswith("model.safetensors.index.json")
    np.testing.assert_equal(tensors_of(NAME), tensors_of(released))


def zipped(directory, inside="uncased/", others=()):
    """Returns the bytes of a zip file with a directory's files and other files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as writer:
        for path in directory.iterdir():
            writer.write(path, inside + path.name)
        for name, data in dict(others).items():
            writer.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize("inside", ["uncased/", ""])
def test_a_released_zip_file_is_read(hub, released, write, inside, monkeypatch):
    archive = write("uncased.zip", zipped(released, inside))
    np.testing.assert_equal(tensors_of(archive), tensors_of(released))
    with files.open_file("ram://zips/uncased.zip", "wb") as writer:
        writer.write(zipped(released, inside))
    np.testing.assert_equal(tensors_of("ram://zips/uncased.zip"), tensors_of(released))
    assert pretrained.find_model(archive, "load()")[-1] is not None
    hub.files["uncased.zip"] = zipped(released, inside)
    url = f"{hub.url}/files/uncased.zip"
    assert reading.find_checkpoint(url).endswith("/uncased/bert_model.ckpt")
    go_offline(monkeypatch)
    np.testing.assert_equal(tensors_of(url), tensors_of(released))
    assert len(hub.asked("GET", "uncased.zip")) == 1
    assert "not in the cache. Unset HF_HUB_OFFLINE" in error(f"{hub.url}/files/other.zip")


def test_two_processes_may_unpack_the_same_zip_file(hub, released, write, monkeypatch):
    unpack, path = download.zipfile.ZipFile.extractall, write("uncased.zip", zipped(released))

    def extract(archive, directory, members):
        monkeypatch.setattr(download.zipfile.ZipFile, "extractall", unpack)
        reading.find_checkpoint(path)  # as another process that is faster
        unpack(archive, directory, members)

    monkeypatch.setattr(download.zipfile.ZipFile, "extractall", extract)
    np.testing.assert_equal(tensors_of(path), tensors_of(released))


def test_names_that_cannot_be_unpacked_are_an_error(hub, released, write):
    for names in (["a/x.txt", "a/x.txt/y.txt"], ["a" * 300 + ".txt"]):
        others = dict.fromkeys(names, "x")
        assert "it can't be unpacked" in error(write("model.zip", zipped(released, others=others)))


def test_a_changed_zip_file_is_read_anew(hub, released, write):
    first = reading.find_checkpoint(write("model.zip", zipped(released)))
    assert reading.find_checkpoint(write("model.zip", zipped(released, "longer/name/"))) != first


def test_a_damaged_zip_file_is_an_error_and_leaves_nothing(hub, released, write, tmp_path):
    whole = zipped(released)
    damaged = bytearray(whole)
    place = whole.index(b"bert_model.ckpt.data") + 2000
    damaged[place : place + 100] = bytes(100)
    for data in (whole[:-100], bytes(damaged), b"", b"no zip file at all"):
        assert "damaged, or not a zip file" in error(write("model.zip", data))
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.json").write_text("{}")
    assert "there are no weights next to the config" in error(write("model.zip", zipped(tmp_path / "config")))
    hub.files["model.zip"] = whole
    hub.broken["/files/model.zip"] = [len(whole) - 100]
    assert "the download failed (100 bytes are missing" in error(f"{hub.url}/files/model.zip")
    assert not [path for path in (tmp_path / "assets").rglob("*") if path.is_file()]
    np.testing.assert_equal(tensors_of(f"{hub.url}/files/model.zip"), tensors_of(released))


def test_nothing_is_unpacked_outside_the_cache_and_other_archives_are_refused(hub, released, write, tmp_path):
    link = zipfile.ZipInfo("uncased/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    for name in ("../../escaped.txt", "uncased/../../escaped.txt", str(tmp_path / "escaped.txt"), link):
        message = error(write("model.zip", zipped(released, others={name: "/etc/hostname"})))
        assert "is a link or outside of the archive. Unpack it, and pass the model's directory." in message
    assert not [path for path in tmp_path.rglob("*") if path.name in ("escaped.txt", "link")]
    two = zipped(released, others={"b/config.json": "{}"})
    assert "b, uncased with bert_config.json or config.json" in error(write("two.zip", two))


def test_only_model_files_up_to_a_size_are_unpacked(hub, released, write, tmp_path, monkeypatch, capsys):
    others = {"uncased/run.py": "x", "uncased/data.csv": "x" * 100_000, "labels.json": "[]"}
    path = write("model.zip", zipped(released, others=others))
    with monkeypatch.context() as patch:
        patch.setattr(download, "_MAX_GIGABYTES", 1e-6)
        assert "more than 1e-06 GB" in error(path)
        assert not list((tmp_path / "assets").rglob("*.txt"))
    monkeypatch.setattr(download, "_MAX_GIGABYTES", 1e-4)  # without the CSV file
    np.testing.assert_equal(tensors_of(path), tensors_of(released))
    assert "Unpacking " in capsys.readouterr().err
    names = {path.name for path in (tmp_path / "assets").rglob("*")}
    assert "labels.json" in names and not names & {"run.py", "data.csv"}


def test_a_directory_with_a_scheme_is_read_by_tensorflow(released):
    np.testing.assert_equal(tensors_of(f"file://{released}"), tensors_of(released))
    np.testing.assert_equal(tensors_of(f"file://{released}/bert_model.ckpt"), tensors_of(released))
    assert bert_tf.load_model(f"file://{released}").tokenizer is not None


def test_a_run_records_the_name_and_not_the_copy(hub):
    classifier = bert_tf.Classifier.from_pretrained(NAME)
    assert classifier._start == NAME and classifier.tokenizer.do_lower_case
    assert run_directory.directory_of_checkpoint(NAME) == download.local_path(NAME)
    assert run_record.recorded(NAME) == {} and not run_record.is_causal(NAME)
