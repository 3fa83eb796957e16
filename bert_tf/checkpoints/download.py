"""Finds a model by the name of its repository on the Hugging Face Hub, or in a zip file, and keeps a copy of it here.

The copies are in the cache of `huggingface_hub`: HF_HOME moves it, HF_HUB_OFFLINE=1 forbids the network, and HF_TOKEN
opens repositories that need a login. Pickled weights are never downloaded, because loading them would run code.
"""

import functools
import hashlib
import http.client
import os
import posixpath
import re
import shutil
import stat
import urllib.error
import urllib.request
import zipfile
import zlib

from bert_tf.runtime import files, reporting
from bert_tf.runtime.files import InputError

SAFETENSORS_FILE = "model.safetensors"
# Names the files of weights that are split into several.
SHARDS_FILE = "model.safetensors.index.json"
CONFIG_FILES = ("bert_config.json", "config.json")

_DOWNLOADED = (
    *("config.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *(SAFETENSORS_FILE, SHARDS_FILE, "model-*-of-*.safetensors"),
)
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".pkl", ".h5", ".msgpack", ".ckpt.index")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# The end of a path that is a file or a prefix, even if it looks like owner/name.
_FILE = re.compile(r"\.(ckpt(-\d+)?|index|data-.*|safetensors|zip|bin|json|txt)$")
# Weights hardly shrink when they are packed. Deflate can shrink zeros a thousand times.
_MAX_SHRINKING = 100
_TIMEOUT_SECONDS = 30
_CHUNK = 1 << 20


def local_path(path: str, flag_name: str = "--init_checkpoint") -> str:
    """Returns a path that is there, and downloads or unpacks what it names if necessary.

    A repository is asked for its newest version once in each process, so that all parts of a run read the same one.

    Args:
      path: one of the following.

        - `owner/name`, if there is nothing of this name here: a repository on the Hugging Face Hub.
        - `hf://owner/name` or `hf://owner/name@revision`: the same. The revision is a branch, a tag or a commit.
        - A zip file or its `https://` URL, as the release has them.
        - Any other path or `gs://` URL, which is returned as it is.
      flag_name: the flag that gave the path, for messages.

    Raises:
      InputError: if the repository or the revision doesn't exist, can't be read or reached, or has no safetensors; if
        the zip file is not whole, or contains what no model has.
    """
    if path.startswith(("http://", "https://")):
        if not path.partition("?")[0].endswith(".zip"):
            raise InputError(
                f"{flag_name}: {path} is not the URL of a zip file. For a repository on the Hugging Face Hub, give "
                "owner/name or hf://owner/name@revision."
            )
        return _unpacked(path, path, flag_name)
    if path.startswith("hf://"):
        name, at, revision = path.removeprefix("hf://").partition("@")
        if not _HUB_NAME.fullmatch(name) or (at and not revision):
            raise InputError(
                f"{flag_name}: {path!r} is given, but hf://owner/name or hf://owner/name@revision is expected."
            )
        return _snapshot(name, revision or None, flag_name)
    if files.is_remote(path):
        return path
    if path.endswith(".zip") and os.path.isfile(path):
        found = os.stat(path)
        return _unpacked(path, f"{os.path.abspath(path)} {found.st_size} {found.st_mtime_ns}", flag_name)
    if _HUB_NAME.fullmatch(path) and not _FILE.search(path) and not os.path.exists(path.partition("/")[0]):
        return _snapshot(path, None, flag_name)
    return path


@functools.cache
def _snapshot(name: str, revision: str | None, flag_name: str) -> str:
    # Most runs read local files, and need not wait for this import.
    import huggingface_hub

    where = f"{flag_name}: {name}" + (f"@{revision}" if revision else "")
    try:
        folder = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(_DOWNLOADED))
    except Exception as error:  # the errors of connections, servers and disks have no common class
        raise InputError(f"{where} {_reason(error)}") from None
    if any(os.path.exists(os.path.join(folder, weights)) for weights in (SAFETENSORS_FILE, SHARDS_FILE)):
        return folder
    try:
        names = huggingface_hub.HfApi().list_repo_files(name, revision=os.path.basename(folder))
    except Exception:  # without the network, only the names of the downloaded files are known
        names = []
    others = ", ".join(other for other in names if other.endswith(_OTHER_WEIGHTS))
    raise InputError(
        f"{where} holds no {SAFETENSORS_FILE}" + (f", but only {others}. " if others else ". ") + "Pickled weights are "
        "never read, because loading them would run whatever code they hold. Where you trust them, load the model in "
        "Hugging Face, save it with model.save_pretrained(FOLDER), and give that folder."
    )


def _reason(error: Exception) -> str:
    """Why a repository could not be downloaded, and what to do."""
    if isinstance(error, ImportError):
        return (
            f"can't be downloaded, because a package that huggingface_hub needs can't be imported ({error}). Install "
            "it anew with `pip install --force-reinstall huggingface_hub`."
        )
    from huggingface_hub import errors

    cause = error.__cause__ or error
    status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else None
    local = "is neither a file or folder here nor"
    if isinstance(error, errors.RevisionNotFoundError):
        return "doesn't exist: the repository has no such branch, tag or commit."
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return (
            "can't be read with this login. Ask for access on its page of the Hugging Face Hub, and log in with "
            "`hf auth login` or set HF_TOKEN."
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return (
            f"{local} a repository of the Hugging Face Hub that this login can read. Check the name for a typing "
            "error; for a private repository, log in with `hf auth login` or set HF_TOKEN."
        )
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return f"{local} in the cache of the Hugging Face Hub, and HF_HUB_OFFLINE forbids to download it."
    why = f"{type(cause).__name__}: {cause}".splitlines()[0]
    if isinstance(error, errors.LocalEntryNotFoundError):
        return f"{local} in the cache, and the Hugging Face Hub can't be reached ({why})."
    return f"could not be downloaded whole ({why}). Run the program again; what has arrived is kept."


def _unpacked(path: str, identity: str, flag_name: str) -> str:
    """Returns the folder with the model of a zip file; downloads and unpacks it if it isn't in the cache.

    Args:
      path: the file or its URL.
      identity: what makes this file different from all others.
      flag_name: the flag that gave the path, for messages.
    """
    from huggingface_hub import cached_assets_path, constants

    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    # The file's own name is kept, because the casing is checked by the names of the released models.
    name = posixpath.basename(path.partition("?")[0]).removesuffix(".zip")
    target = os.path.join(cached_assets_path("bert_tf", "zip"), key, name)
    if not os.path.exists(target):
        if files.is_remote(path) and constants.HF_HUB_OFFLINE:
            raise InputError(f"{flag_name}: {path} is not in the cache, and HF_HUB_OFFLINE forbids to download it.")
        try:
            with files.replacing_folder(target) as folder:
                archive = _fetch(path, folder, flag_name) if files.is_remote(path) else path
                _unpack(archive, folder, f"{flag_name}: {path}")
                if archive != path:
                    files.remove(archive)
                _folder_with_config(folder, f"{flag_name}: {path}")
        except OSError:
            if not os.path.exists(target):  # otherwise another process was faster
                raise
    return _folder_with_config(target, f"{flag_name}: {path}")


def _fetch(url: str, folder: str, flag_name: str) -> str:
    """Downloads a file into a folder, and returns its path."""
    target = os.path.join(folder, "downloaded.zip")
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
        raise InputError(
            f"{flag_name}: {url} could not be downloaded ({error}). Check the URL, or run the program again."
        ) from None
    return target


def _unpack(archive: str, folder: str, where: str) -> None:
    """Writes the files of a zip file into a folder, and compares their checksums.

    Raises:
      InputError: if it is damaged, or could write files elsewhere or fill the disk.
    """
    try:
        with zipfile.ZipFile(archive) as reader:
            members = [member for member in reader.infolist() if not member.is_dir()]
            for member in members:
                parts = member.filename.split("/")
                if ".." in parts or "" in parts or ":" in parts[0] or stat.S_ISLNK(member.external_attr >> 16):
                    raise InputError(
                        f"{where} contains {member.filename!r}, a link or a path out of its folder, which no model "
                        "needs. Nothing was unpacked; don't trust this file."
                    )
            # No member gives more bytes than are declared here.
            unpacked, packed = sum(member.file_size for member in members), os.path.getsize(archive)
            if unpacked > _MAX_SHRINKING * packed:
                raise InputError(
                    f"{where} has {packed} bytes, but {unpacked} when it is unpacked, which weights never have. "
                    "Nothing was unpacked; don't trust this file."
                )
            for member in members:
                with reader.open(member) as source, files.replacing(os.path.join(folder, member.filename), "wb") as new:
                    shutil.copyfileobj(source, new, _CHUNK)
    # Passwords and unknown compressions are RuntimeErrors.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(
            f"{where} is not a whole zip file that can be read ({error}). Download it again; nothing was kept."
        ) from None


def _folder_with_config(root: str, where: str) -> str:
    """The folder below `root` that contains the config of a model.

    Raises:
      InputError: if there is none, or more than one.
    """
    found = [folder for folder, _, names in os.walk(root) if not {*names}.isdisjoint(CONFIG_FILES)]
    if len(found) == 1:
        return found[0]
    inside = ", ".join(sorted(os.path.relpath(folder, root) for folder in found)) or "none"
    raise InputError(
        f"{where}: one folder with {' or '.join(CONFIG_FILES)} is expected in the zip file, but there is {inside}. "
        "Unpack it, and give the folder of a model."
    )
