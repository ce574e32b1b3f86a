"""Published files into the safetensors files that this library reads. No code in a file is ever run."""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from characters.errors import UserError
from characters.output import write_error

PICKLES = (".pt", ".pth", ".bin", ".ckpt")
_WRAPPERS = ("state_dict", "model", "module")  # keys that a file of tensors may be wrapped in
_POINTER = b"version https://git-lfs"


def convert(source: Path, target: Path, prefix: str = "") -> None:
    """Write a file's tensors as safetensors.

    Args:
        source: safetensors, or a pickle that holds tensors alone.
        target: what is written; nothing is left there after an error.
        prefix: put before the tensors' names.

    Raises:
        UserError: the source is damaged, holds code or something other than tensors, or the target cannot be written.
    """
    try:
        tensors = _unpickled(source) if source.suffix in PICKLES else load_file(source)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{source} is not a readable safetensors file: {explain(source, error)}") from error
    tensors = {prefix + name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(tensors, target)
    except (OSError, SafetensorError) as error:
        target.unlink(missing_ok=True)
        raise write_error(target, error) from error


def headers(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Data type and shape of each tensor of a safetensors file, by name; no tensor is read.

    Raises:
        UserError: it is missing, damaged, cut off or something else.
    """
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            slices = {name: file.get_slice(name) for name in names}
            return {name: (found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a readable safetensors file: {explain(path, error)}") from error


def sha256(path: Path) -> str:
    """Of a file. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def explain(path: Path, error: Exception) -> str:
    """Why a file cannot be read, in words for whoever brought it."""
    try:
        with open(path, "rb") as file:
            start = file.read(256)
    except OSError as unreadable:
        return unreadable.strerror or str(unreadable)
    if start.startswith(_POINTER):
        return "it is a Git LFS pointer to the file; fetch the file itself with `git lfs pull`"
    if start[:2] == b"PK" or start[:1] == b"\x80":
        return "it is a pickle under another name; its name must end in .pt or .pth"
    size = path.stat().st_size
    if start[:1].isspace() or start.lstrip()[:1] in (b"<", b"{"):
        return "it is a text, perhaps a page that the server sent instead of the file"
    if len(start) >= 9 and start[8:9] == b"{" and struct.unpack("<Q", start[:8])[0] < 2**30:
        return f"it ends after {size:,} bytes: it was cut off; download it again"
    return str(error)


def _unpickled(source: Path) -> dict[str, Tensor]:
    try:
        with open(source, "rb") as file:
            start = file.read(len(_POINTER))
        if start == _POINTER:
            raise UserError(f"{source}: {explain(source, ValueError())}")
        mapped = {"mmap": True} if start.startswith(b"PK") else {}
        found = torch.load(source, map_location="cpu", weights_only=True, **mapped)
    except pickle.UnpicklingError as error:
        if "unsupported global" not in str(error).lower() and "unsupported class" not in str(error).lower():
            raise UserError(f"{source} is damaged or cut off, or no pickle at all") from error
        raise UserError(
            f"{source} holds more than tensors, perhaps code that would run when it is loaded: it was not loaded"
        ) from error
    except UserError:
        raise
    except Exception as error:  # of a damaged archive PyTorch raises anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{source} is damaged or cut off: {reason}") from error
    return _tensors(source, found)


def _tensors(source: Path, found: Any) -> dict[str, Tensor]:
    if isinstance(found, Mapping):
        for wrapper in _WRAPPERS:
            if isinstance(found.get(wrapper), Mapping):
                return _tensors(source, found[wrapper])
    strange = not isinstance(found, Mapping) or not found
    if strange or not all(isinstance(n, str) and isinstance(t, Tensor) for n, t in found.items()):
        raise UserError(f"{source} does not hold a model's tensors by name")
    return dict(found)
