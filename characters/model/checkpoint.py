"""Weights on disk: safetensors only, checked name by name and shape by shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from characters.errors import UserError
from characters.output import whole_file

WEIGHTS_FOLDER = Path(__file__).resolve().parents[1] / "weights"


def load_weights(
    module: nn.Module, path: Path, translate: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
) -> None:
    """Load a safetensors file into a module, in place, keeping the module's dtype.

    Args:
        module: what to load into.
        path: of the file.
        translate: renames the file's tensors to the module's.

    Raises:
        UserError: the file is missing or damaged, or doesn't fit the module.
    """
    tensors = load_tensors(path)
    if translate is not None:
        tensors = translate(tensors)
    own = module.state_dict()
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    wrong = [k for k in own.keys() & tensors.keys() if own[k].shape != tensors[k].shape]
    if missing or unknown or wrong:
        raise UserError(
            f"{path} was made for another model: {len(missing)} tensors missing, {len(unknown)} unknown, "
            f"{len(wrong)} of another shape (first: {(missing + unknown + wrong)[0]})"
        )
    module.load_state_dict(tensors)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, by name.

    Raises:
        UserError: the file is missing or damaged.
    """
    if not path.is_file():
        raise UserError(f"no weights at {path}; train them with `characters train`, or choose another --model")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a readable safetensors file: {error}") from error


def save_weights(module: nn.Module, path: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write a module's parameters and buffers; floating-point ones are stored as `dtype`.

    Raises:
        UserError: it cannot be written; what was at `path` stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in module.state_dict().items()
    }
    with whole_file(path) as file:
        file.write(save(tensors))
