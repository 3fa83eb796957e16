"""Downloads models from the Hugging Face Hub, and unpacks models in zip files.

Local copies are stored in the cache of `huggingface_hub`. The environment variable HF_HOME moves the cache.
HF_HUB_OFFLINE=1 disables the network. HF_TOKEN gives access to repositories that need a login.
"""

import functools
import hashlib
import http.client
import os
import posixpath
import re
import stat
import urllib.error
import urllib.request
import zipfile
import zlib

from bert_tf.runtime import files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say

SAFETENSORS_FILE = "model.safetensors"
# Files of weights in Hugging Face's format. Only the first file that a repository contains is downloaded.
_WHOLE_FILES = (SAFETENSORS_FILE, "tf_model.h5", "pytorch_model.bin")
# The same files, and the indexes of weights that are split into several files.
WEIGHTS_FILES = tuple(name + index for name in _WHOLE_FILES for index in ("", ".index.json"))
CONFIG_FILES = ("bert_config.json", "config.json")

_DOWNLOADED = (
    *("config.json", "vocab.txt", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    # sentence-transformers, see `sentence_vectors`
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "*_Pooling/config.json"),
)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Endings of files and checkpoint prefixes. Such paths are never Hub names, even if they have the form owner/name.
_FILE = re.compile(r"\.(ckpt(-\d+)?|index|data-.*|safetensors|zip|bin|pt|pth|h5|pb|json|txt)$")
# The files of a model in a zip file, and their largest unpacked size.
_MODEL_FILE = re.compile(
    r"(\.(json|txt|index|meta|safetensors|h5|bin|pt|pth|pb)|\.data-\d{5}-of-\d{5}|(^|/)checkpoint)$"
)
_WEIGHTS = re.compile(r"\.(index|index\.json|safetensors|h5|bin|pt|pth|pb)$")
_MAX_GIGABYTES = 5
_UNPACK = "Unpack it, and pass the model's directory."
_WEB = ("http://", "https://")
_TIMEOUT_SECONDS = 30
_CHUNK = 1 << 20


def local_path(path: str, flag_name: str = "--init_checkpoint") -> str:
    """Returns a local path or a `gs://` URL. Downloads or unpacks the model if necessary.

    The newest version of a repository is looked up once per process, so that all parts of a run read the same version.

    Args:
      path: one of the following.

        - `owner/name`, unless the path exists locally: a repository on the Hugging Face Hub.
        - `hf://owner/name` or `hf://owner/name@revision`: the same. The revision is a branch, a tag or a commit.
        - A zip file or the `https://` URL of a zip file, such as the released ones.
        - Any other path or `gs://` URL, which is returned unchanged.
      flag_name: the flag with the path, for messages.

    Raises:
      InputError: if the repository or the revision can't be read or has no weights, or if the zip file is damaged
        or contains no model.
    """
    if path.startswith(_WEB) and path.partition("?")[0].endswith(".zip"):
        return _unpacked(path, path, flag_name)
    if path.startswith("hf://"):
        name, at, revision = path.removeprefix("hf://").partition("@")
        if not HUB_NAME.fullmatch(name) or (at and not revision):
            remedy = "Use hf://owner/name or hf://owner/name@revision."
            raise InputError(f"{flag_name}: {path!r} is not a Hub name. {remedy}")
        return _snapshot(name, revision or None, flag_name)
    if path.endswith(".zip") and files.exists(path) and not files.is_directory(path):
        return _unpacked(path, f"{files.resolved(path)} {files.stamp(path)}", flag_name)
    if files.is_remote(path):
        return path
    if HUB_NAME.fullmatch(path) and not _FILE.search(path) and not os.path.exists(path.partition("/")[0]):
        return _snapshot(path, None, flag_name)
    return path


@functools.cache
def _snapshot(name: str, revision: str | None, flag_name: str) -> str:
    # Imported here, because most runs read local files and do not need it.
    import huggingface_hub

    where = f"{flag_name}: {name}" + (f"@{revision}" if revision else "")
    for whole in _WHOLE_FILES:
        stem, suffix = os.path.splitext(whole)
        patterns = [*_DOWNLOADED, whole, f"{whole}.index.json", f"{stem}-*-of-*{suffix}"]
        try:
            directory = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=patterns)
        except Exception as error:  # the errors of connections, servers and disks have no common class
            raise InputError(f"{where}: {_reason(error)}") from None
        if any(os.path.exists(os.path.join(directory, weights)) for weights in WEIGHTS_FILES):
            return directory
    raise InputError(f"{where}: the repository has none of {', '.join(WEIGHTS_FILES)}. Use another repository.")


def _reason(error: Exception) -> str:
    """Returns a message with the reason why a repository can't be downloaded, and advice."""
    cause = error.__cause__ or error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status in (401, 403, 404):
        return (
            "neither a local path nor a repository and revision of the Hugging Face Hub that you may read. Check the "
            "name, or log in with `hf auth login` or HF_TOKEN."
        )
    why = f"{type(cause).__name__}: {cause}".splitlines()[0]
    if isinstance(error, FileNotFoundError):  # base class of huggingface_hub's LocalEntryNotFoundError
        return f"not in the cache, and the Hugging Face Hub can't be reached ({why}). Check the network."
    return f"the download failed ({why}). Run the program again to resume it."


@files.fills_cache()
def _unpacked(path: str, identity: str, flag_name: str) -> str:
    """Returns the directory with an unpacked model. Downloads and unpacks the zip file if it is not in the cache.

    Args:
      path: the file or its URL.
      identity: a text that identifies the content of the file.
      flag_name: the flag with the path, for messages.
    """
    from huggingface_hub import cached_assets_path, constants

    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    # Keep the name of the file, because the casing is checked by the names of the released models.
    name = posixpath.basename(path.partition("?")[0]).removesuffix(".zip")
    target = os.path.join(cached_assets_path("bert_tf", "zip"), key, name)
    where = f"{flag_name}: {path}"
    if not os.path.exists(target):
        is_web = path.startswith(_WEB)
        if is_web and constants.HF_HUB_OFFLINE:
            raise InputError(f"{where}: not in the cache. Unset HF_HUB_OFFLINE to download it.")
        try:
            with files.replacing_directory(target) as directory:
                archive = _fetch(path, directory, where) if is_web else path
                with files.open_file(archive, "rb") as file, zipfile.ZipFile(file) as reader:
                    reader.extractall(directory, _members(reader, where))  # checks checksums
                if archive != path:
                    files.remove(archive)
                _directory_with_config(directory, where)
        # Passwords and unknown compressions are RuntimeErrors.
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise InputError(f"{where}: damaged, or not a zip file ({error}). Download it again.") from None
        except OSError as error:  # for example, two members with one name, or a name that is too long
            raise InputError(f"{where}: it can't be unpacked ({error}). {_UNPACK}") from None
        except InputError:
            if not os.path.exists(target):  # otherwise another process has unpacked the file
                raise
    return _directory_with_config(target, where)


def _members(archive: zipfile.ZipFile, where: str) -> list[zipfile.ZipInfo]:
    """Returns the model files in an archive. Other files are not unpacked.

    Raises:
      InputError: if the archive contains links or paths outside of the archive, or if the files are too large.
    """
    for member in archive.infolist():
        names = member.filename.split("/")
        if stat.S_ISLNK(member.external_attr >> 16) or not names[0] or ".." in names:
            raise InputError(f"{where}: {member.filename!r} is a link or outside of the archive. {_UNPACK}")
    members = [member for member in archive.infolist() if _MODEL_FILE.search(member.filename)]
    size = sum(member.file_size for member in members) / 1e9
    if size > _MAX_GIGABYTES:
        raise InputError(f"{where}: the model has {size:.1f} GB, more than {_MAX_GIGABYTES} GB. {_UNPACK}")
    say(f"Unpacking {len(members)} files with {size:.2f} GB of {where} into the cache.")
    return members


def _fetch(url: str, directory: str, where: str) -> str:
    """Downloads a file into a directory, and returns its path."""
    target = os.path.join(directory, "downloaded.zip")
    try:
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response,
            files.replacing(target, "wb") as writer,
            reporting.progress_bar(response.length, "download", unit="B") as bar,
        ):
            while chunk := response.read(_CHUNK):
                writer.write(chunk)
                bar.update(len(chunk))
            if response.length:
                raise ConnectionError(f"{response.length} bytes are missing at the end")
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise InputError(f"{where}: the download failed ({error}). Check the URL, or run the program again.") from None
    return target


def _directory_with_config(root: str, where: str) -> str:
    """Returns the directory below `root` that contains the config of a model.

    Raises:
      InputError: if no directory, or more than one, contains a config, or if there are no weights.
    """
    directories = [directory for directory, _, names in os.walk(root) if not {*names}.isdisjoint(CONFIG_FILES)]
    if len(directories) != 1:
        inside = ", ".join(sorted(os.path.relpath(directory, root) for directory in directories)) or "no directory"
        raise InputError(f"{where}: {inside} with {' or '.join(CONFIG_FILES)}. {_UNPACK}")
    if not any(map(_WEIGHTS.search, os.listdir(directories[0]))):
        raise InputError(f"{where}: there are no weights next to the config. Download another file.")
    return directories[0]
