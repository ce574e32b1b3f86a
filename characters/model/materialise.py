"""A DiT, or a part of it, built block by block where it will live: read, quantised, and only then the next block.

So 57B parameters never lie in host memory, nor in bfloat16 on the GPU. Weights come from safetensors files, whole or in
shards, under our names or those of the original Wan 2.1 checkpoints; or they are random, where speed is the question.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from characters.errors import UserError
from characters.model.config import ModelConfig
from characters.model.dit import DiT
from characters.model.quantise import Mode, quantise_block, quantise_cross_attention
from characters.model.s2v_names import original_s2v_name

M = TypeVar("M", bound=nn.Module)

SEED = 57


class Source(Protocol):
    """Where weights come from."""

    def check(self, shapes: Mapping[str, torch.Size]) -> None:
        """Raise UserError unless there is a tensor of each name and shape; reads no weights."""

    def read(self, name: str, shape: torch.Size) -> Tensor:
        """One tensor, on the device and in the dtype of the source."""


class RandomWeights:
    """Normal weights that keep the variance of what they multiply; zero biases. A tensor depends on its name alone.

    Args:
        device, dtype: of the tensors.
        seed: of all of them.
    """

    def __init__(self, device: torch.device | str, dtype: torch.dtype, seed: int = SEED) -> None:
        self._device, self._dtype, self._seed = device, dtype, seed

    def check(self, shapes: Mapping[str, torch.Size]) -> None:
        """See `Source.check`: there is one of every name."""

    def read(self, name: str, shape: torch.Size) -> Tensor:
        """See `Source.read`."""
        if name.endswith("bias"):
            return torch.zeros(shape, device=self._device, dtype=self._dtype)
        if len(shape) == 1:
            return torch.ones(shape, device=self._device, dtype=self._dtype)
        generator = torch.Generator(self._device).manual_seed(self._seed + zlib.crc32(name.encode()))
        # In float32 whatever the dtype, so that models of different dtypes differ in rounding only.
        tensor = torch.randn(shape, generator=generator, device=self._device)
        return tensor.mul_(shape[-1] ** -0.5).to(self._dtype)


class SafetensorsWeights:
    """One file, or a folder of them; each tensor is read straight to its device.

    Args:
        path: of the file or folder.
        config: of the model.
        device, dtype: of the tensors.

    Raises:
        UserError: nothing there, or not safetensors.
    """

    def __init__(self, path: Path, config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            raise UserError(f"no safetensors files at {path}")
        self._path, self._config, self._device, self._dtype = path, config, device, dtype
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            try:
                with safe_open(file, "pt") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 - not a mapping
                        self._files[name] = file
                        self._shapes[name] = tuple(tensors.get_slice(name).get_shape())
            except (SafetensorError, OSError) as error:
                raise UserError(f"{file} is not a readable safetensors file: {error}") from error
        # Wan's patch embedding is a convolution, and the rows of its head are ordered by pixel, then by channel.
        self._original = len(self._shapes.get("patch_embedding.weight", ())) == 5

    def check(self, shapes: Mapping[str, torch.Size]) -> None:
        """See `Source.check`."""
        missing = [name for name in shapes if self._original_name(name) not in self._shapes]
        if missing:
            raise UserError(f"{self._path} lacks {len(missing)} of the model's tensors (first: {missing[0]})")
        for name, shape in shapes.items():
            found = self._shapes[self._original_name(name)]
            same = torch.Size(found).numel() == shape.numel() and found[0] == shape[0]
            if not same or len(found) not in (len(shape), 5):
                raise UserError(f"{self._path} was made for another model: {name} is {list(found)}, not {list(shape)}")

    def read(self, name: str, shape: torch.Size) -> Tensor:
        """See `Source.read`."""
        found = self._original_name(name)
        with safe_open(self._files[found], "pt", device=str(self._device)) as tensors:
            tensor = tensors.get_tensor(found).to(self._dtype)
        if self._original and name.startswith("head.head."):
            channels = self._config.latent_channels
            tensor = tensor.unflatten(0, (-1, channels)).transpose(0, 1)
        return tensor.reshape(shape).contiguous()

    def _original_name(self, name: str) -> str:
        """What the checkpoint calls one of our tensors."""
        original = name.replace("conditioning.text.", "text_embedding.")
        if self._config.s2v is not None:
            original = original_s2v_name(original, self._config.s2v.injected)
        return original if original in self._shapes else name


def build_dit(
    config: ModelConfig,
    source: Source,
    *,
    layers: tuple[int, int] | None = None,
    fp8: Mode | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> DiT:
    """Build a DiT in eval mode.

    Args:
        config: a checked model config.
        source: of the weights; its device and dtype are the model's.
        layers: half-open range of blocks; default: all.
        fp8: quantise the blocks and injectors, with static or dynamic scales; default: don't.
        progress: called with the number of blocks done and of all.

    Raises:
        UserError: the source doesn't fit the model, found out before anything is read.
    """
    with torch.device("meta"):
        dit = DiT(config, layers)
    source.check({name: parameter.shape for name, parameter in dit.named_parameters()})
    _fill(dit, "", (name for name, _ in dit.named_parameters() if not name.startswith("blocks.")), source)
    for done, (number, block) in enumerate(dit.blocks.items()):
        progress(done, len(dit.blocks))
        _fill(block, f"blocks.{number}.", [name for name, _ in block.named_parameters()], source)
        if fp8 is not None:
            quantise_block(block, fp8)
            if number in dit.injectors:
                quantise_cross_attention(dit.injectors[number].attention, fp8)
    progress(len(dit.blocks), len(dit.blocks))
    return dit.eval().requires_grad_(False)


def build(kind: Callable[[], M], source: Source, prefix: str) -> M:
    """Build any module in eval mode from a source's tensors, whose names begin with `prefix`.

    Raises:
        UserError: the source doesn't fit, found out before anything is read.
    """
    with torch.device("meta"):
        module = kind()
    names = {name: parameter.shape for name, parameter in module.named_parameters()}
    source.check({prefix + name: shape for name, shape in names.items()})
    _fill(module, prefix, names, source)
    return module.eval().requires_grad_(False)


@torch.no_grad()
def _fill(module: nn.Module, prefix: str, names: Iterable[str], source: Source) -> None:
    for name in list(names):
        parent, _, leaf = name.rpartition(".")
        owner = module.get_submodule(parent)
        tensor = source.read(prefix + name, getattr(owner, leaf).shape)
        setattr(owner, leaf, nn.Parameter(tensor, requires_grad=False))
