"""Whether a model's files are those of the model: every tensor by name, by shape and by data type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch import nn

from characters.checkpoints.convert import headers
from characters.errors import UserError
from characters.model.audio_projection import AudioProjection
from characters.model.autoencoder import Autoencoder
from characters.model.config import ModelConfig
from characters.model.dit import DiT
from characters.model.taehv import TinyVae
from characters.model.wan_vae.checkpoint import translate as translate_vae
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import Wav2Vec2
from characters.model.wav2vec2 import translate as translate_ear

DIT, AUTOENCODER, EAR = "dit.safetensors", "autoencoder.safetensors", "ear.safetensors"
LORA, PROJECTION = "lora.safetensors", "audio_proj.safetensors"
_FLOATS = ("F64", "F32", "F16", "BF16")
_WEIGHT_NORM = "pos_conv_embed.conv."

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class FileReport:
    """How a file fits its model; all by name.

    Attributes:
        name: of the file.
        used: tensors that the model takes.
        ignored: tensors that it does not take.
        missing: tensors that it wants and does not find.
        wrong: what is wrong with tensors that it finds.
    """

    name: str
    used: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def fault(self) -> str:
        """What is wrong with it, in a line; "" if nothing is."""
        if self.missing:
            return f"{self.name} lacks {len(self.missing)} of the model's tensors (first: {self.missing[0]})"
        if self.wrong:
            return f"{self.name} was made for another model or is quantised: {self.wrong[0]}" + (
                f", and {len(self.wrong) - 1} more" if len(self.wrong) > 1 else ""
            )
        return ""


def wanted_files(config: ModelConfig) -> list[str]:
    """The files that a model reads, without what may lie beside them."""
    own = [DIT, AUTOENCODER] + ([EAR] if config.window is not None else [])
    return list(dict.fromkeys([*own, *(file.name for file in config.files)]))


def inspect(config: ModelConfig, folder: Path) -> list[FileReport]:
    """Hold a model's files against the model; reads no weights.

    Raises:
        UserError: a file is missing or cannot be read.
    """
    for name in wanted_files(config):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}")
    with torch.device("meta"):
        dit = _shapes(DiT(config))
        window = config.window
        projection = _shapes(AudioProjection(window.projection), "audio_proj.") if window is not None else {}
        ear = _shapes(Wav2Vec2(window.ear)) if window is not None else {}
        autoencoder = _shapes(_autoencoder(config))
    apart = (folder / PROJECTION).is_file()
    reports = [_plain(folder / DIT, dit if apart else dit | projection)]
    if apart:
        reports.append(_plain(folder / PROJECTION, projection))
    if (folder / LORA).is_file():
        reports.append(_adapter(folder / LORA, dit))
    reports.append(_translated(folder / AUTOENCODER, autoencoder, lambda names: _vae_names(names, config)))
    if window is not None:
        reports.append(_translated(folder / EAR, ear, _ear_names))
    return reports


def _autoencoder(config: ModelConfig) -> nn.Module:
    if config.autoencoder.wan is not None:
        return WanVae(config.autoencoder.wan, config.latent_channels)
    return TinyVae(config.latent_channels) if config.autoencoder.tiny else Autoencoder(config)


def _shapes(module: nn.Module, prefix: str = "") -> dict[str, tuple[int, ...]]:
    return {prefix + name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _plain(path: Path, wanted: Shapes) -> FileReport:
    """A file under the model's own names; its convolutions may be matrices here."""
    return _compare(path, wanted, {name: [name] for name in headers(path)})


def _translated(path: Path, wanted: Shapes, rename: Callable[[Iterable[str]], dict[str, list[str]]]) -> FileReport:
    """A file under others' names."""
    return _compare(path, wanted, rename(headers(path)))


def _compare(path: Path, wanted: Shapes, names: Mapping[str, list[str]]) -> FileReport:
    """`names`: those in the file by those of the model."""
    found, report = headers(path), FileReport(path.name)
    for name, shape in wanted.items():
        sources = names.get(name, [])
        if not sources:
            report.missing.append(name)
            continue
        for source in sources:
            dtype, other = found[source]
            report.used.append(source)
            if dtype not in _FLOATS:
                report.wrong.append(f"{source} is {dtype}, not floating-point")
            elif len(sources) == 1 and (prod(other) != prod(shape) or other[:1] != shape[:1]):
                report.wrong.append(f"{source} is {list(other)}, not {list(shape)}")
    report.ignored = sorted(found.keys() - set(report.used))
    return report


def _adapter(path: Path, dit: Shapes) -> FileReport:
    """A LoRA: B [out, rank] and A [rank, in] for a layer of the DiT."""
    report, found = FileReport(path.name), headers(path)
    halves: dict[str, dict[str, str]] = {}
    for full in found:
        name = full.removeprefix("base_model.model.").replace("_orig_mod.", "")
        layer, _, half = name.partition(".lora_")
        if half[:1] not in ("A", "B") or f"{layer}.weight" not in dit:
            report.ignored.append(full)
        else:
            halves.setdefault(layer, {})[half[0]] = full
            report.used.append(full)
            if found[full][0] not in _FLOATS:
                report.wrong.append(f"{full} is {found[full][0]}, not floating-point")
    for layer, parts in halves.items():
        if parts.keys() != {"A", "B"}:
            report.missing.append(f"{layer}.lora_{'B' if 'A' in parts else 'A'}")
            continue
        (rank, columns), (rows, other) = found[parts["A"]][1], found[parts["B"]][1]
        if (rows, columns) != dit[f"{layer}.weight"] or rank != other:
            report.wrong.append(f"{layer} is [{rows}, {columns}], not {list(dit[f'{layer}.weight'])}")
    if not halves:
        report.missing.append("any layer of the model")
    return report


def _vae_names(names: Iterable[str], config: ModelConfig) -> dict[str, list[str]]:
    wan = config.autoencoder.wan
    if wan is None:
        return {name: [name] for name in names}
    # It looks at names alone: names stand for tensors here.
    renamed: Mapping[str, object] = translate_vae({name: name for name in names}, wan)  # type: ignore[arg-type, misc]
    return {ours: [str(theirs)] for ours, theirs in renamed.items()}


def _ear_names(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if _WEIGHT_NORM in name and not name.endswith(".bias"):
            found.setdefault("position.weight", []).append(name)  # a length and a direction
        else:
            for ours in translate_ear({name: torch.empty(0)}):
                found[ours] = [name]
    return found
