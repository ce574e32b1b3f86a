"""Low-rank adapters (LoRA, Hu et al. 2021), merged while the weights are read: what runs is one plain matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from characters.errors import UserError
from characters.model.materialise import Source

_A, _B = ".lora_A", ".lora_B"


class Lora:
    """A `Source` that adds an adapter's B A alpha / rank to what another source reads.

    Args:
        source: of the weights below.
        path: safetensors file of PEFT: `base_model.model.NAME.lora_A.weight`, with or without `_orig_mod.` and an
            adapter's name, and the same for B.
        alpha: of the adapter.

    Raises:
        UserError: the file is missing or damaged, holds something else, or A without B.
    """

    def __init__(self, source: Source, path: Path, alpha: float) -> None:
        self._source, self._path, self._alpha = source, path, alpha
        self._parts: dict[str, dict[str, Tensor]] = {}
        try:
            with safe_open(path, "pt") as file:
                for full in file.keys():  # noqa: SIM118 - not a mapping
                    name, part = _parse(full)
                    if part is None:
                        raise UserError(f"{path} holds {full!r}, which is not part of a LoRA adapter")
                    self._parts.setdefault(name, {})[part] = file.get_tensor(full)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is not a readable safetensors file: {error}") from error
        halves = [name for name, parts in self._parts.items() if parts.keys() != {_A, _B}]
        if halves or not self._parts:
            raise UserError(
                f"{path} is not a whole LoRA adapter: {halves[0] if halves else 'it'} lacks lora_A or lora_B"
            )

    def check(self, shapes: Mapping[str, torch.Size]) -> None:
        """See `Source.check`. Raises UserError too for an adapter that adds to nothing here or does not fit."""
        self._source.check(shapes)
        for name, parts in self._parts.items():
            shape = shapes.get(f"{name}.weight")
            found = (parts[_B].shape[0], parts[_A].shape[1])
            if shape is not None and (tuple(shape) != found or parts[_B].shape[1] != parts[_A].shape[0]):
                raise UserError(f"{self._path} was made for another model: {name} is {list(found)}, not {list(shape)}")
        if not any(f"{name}.weight" in shapes for name in self._parts):
            raise UserError(f"{self._path} was made for another model: it adds to none of this model's layers")

    def read(self, name: str, shape: torch.Size) -> Tensor:
        """See `Source.read`."""
        tensor = self._source.read(name, shape)
        parts = self._parts.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        if parts is None:
            return tensor
        a, b = (parts[part].to(tensor.device, torch.float32) for part in (_A, _B))
        return (tensor.float() + (self._alpha / len(a)) * (b @ a)).to(tensor.dtype)


def _parse(full: str) -> tuple[str, str | None]:
    """The layer that a tensor of an adapter belongs to, and which half it is; None for neither."""
    name = full.removeprefix("base_model.model.").replace("_orig_mod.", "")
    for part in (_A, _B):
        head, found, tail = name.partition(part)
        if found and (
            tail == ".weight" or (tail.startswith(".") and tail.endswith(".weight") and tail.count(".") == 2)
        ):
            return head, part
    return full, None
