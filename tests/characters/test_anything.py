"""Files of strangers: whatever is in them, the answer is what they hold or a line that a person can read."""

from __future__ import annotations

import contextlib
import io
import struct
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from characters.character import list_characters, load_folder
from characters.errors import UserError
from characters.media.audio import open_audio
from characters.media.portrait import load_portrait
from characters.model.checkpoint import load_weights
from characters.model.config import load_model_config
from characters.model.materialise import SafetensorsWeights
from tests.fuzzing import JSON, damaged, fuzz

SECONDS = 5.0  # that anything may take


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Nothing but a `UserError` comes out, and soon."""
    began = time.monotonic()
    with contextlib.suppress(UserError):
        yield
    assert time.monotonic() - began < SECONDS


def picture(kind: str, mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (96, 80, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, kind)
    return out.getvalue()


PICTURES = [
    *(picture(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")),
    picture("PNG", "P"),
    picture("TIFF", "F"),
    picture("TIFF", "I;16"),
]


@fuzz(100)
@given(st.sampled_from(PICTURES).flatmap(damaged) | st.binary(max_size=200))
def test_anything_as_a_portrait(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = file(tmp_path_factory, "portrait.png", data)
    with told():
        assert load_portrait(path, 272, 176).shape == (272, 176, 3)


def sound() -> list[bytes]:
    pcm = (np.sin(np.arange(4800) / 10) * 20000).astype(np.int16)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24000)
        file.writeframes(pcm.tobytes())
    floats = pcm.astype(np.float32).tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(floats), b"WAVE", b"fmt ", 16, 3, 1, 24000, 96000, 4, 32,
                       b"data", len(floats))  # fmt: skip
    flac = next((Path(__file__).parents[2] / "characters/evaluation/heldout").glob("*.flac")).read_bytes()
    return [out.getvalue(), head + floats, flac]


@fuzz(40)
@given(st.sampled_from(sound()).flatmap(damaged) | st.binary(max_size=200))
def test_anything_as_a_recording(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = file(tmp_path_factory, "sound.wav", data)
    with told():
        for number, chunk in enumerate(open_audio(path).chunks()):
            assert chunk.shape == (4000,) and np.isfinite(chunk).all()
            if number > 200:
                break


def character() -> st.SearchStrategy[str]:
    good = yaml.safe_load((list_characters()[0].folder / "character.yaml").read_text())
    keys = st.sampled_from([*good, "voice", "persona"]) | st.text(max_size=12)
    inner = st.sampled_from(["engine", "voice", "pitch", "speed"]) | st.text(max_size=8)
    voices = st.dictionaries(inner, JSON, max_size=4)
    changed = st.dictionaries(keys, JSON | voices, max_size=3).map(lambda change: yaml.safe_dump(good | change))
    return changed | st.text(max_size=200) | JSON.map(yaml.safe_dump)


@fuzz(120)
@given(character())
def test_anything_as_a_character(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = file(tmp_path_factory, "character.yaml", text.encode("utf-8", "surrogatepass")).parent
    (folder / "portrait.png").write_bytes(PICTURES[0])
    with told():
        assert load_folder(folder).character.name


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)


def checkpoint() -> st.SearchStrategy[bytes]:
    whole = save({name: tensor.detach().clone() for name, tensor in Two().state_dict().items()})

    def headed(header: Any) -> bytes:
        text = yaml.safe_dump(header, default_flow_style=True, width=10**6).strip().encode("utf-8", "replace")
        return struct.pack("<Q", len(text)) + text + bytes(200)

    about = st.fixed_dictionaries(
        {"dtype": st.sampled_from(["F32", "F16", "I64", "BOOL", "?"]) | JSON,
         "shape": st.lists(st.integers(-(2**65), 2**65) | st.integers(0, 5), max_size=4) | JSON,
         "data_offsets": st.lists(st.integers(-1, 2**65) | st.integers(0, 90), max_size=3) | JSON}
    )  # fmt: skip
    names = st.sampled_from(list(Two().state_dict())) | st.text(max_size=9)
    return damaged(whole) | st.dictionaries(names, about | JSON, max_size=4).map(headed) | st.binary(max_size=100)


@fuzz(100)
@given(checkpoint())
def test_anything_as_a_checkpoint(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path, two = file(tmp_path_factory, "weights.safetensors", data), Two()
    before = [parameter.detach().clone() for parameter in two.parameters()]
    try:
        with told():
            load_weights(two, path)
            return
    finally:
        assert [p.shape for p in two.parameters()] == [b.shape for b in before]
    assert all(torch.equal(p, b) for p, b in zip(two.parameters(), before, strict=True)), "half of it was loaded"


@fuzz(40)
@given(checkpoint())
def test_anything_as_the_weights_of_a_dit(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = file(tmp_path_factory, "dit.safetensors", data)
    with told():
        weights = SafetensorsWeights(path, load_model_config("small"), "cpu", torch.float32)
        with safe_open(path, "pt") as tensors:
            shapes = {name: torch.Size(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        weights.check(shapes)
        for name, shape in shapes.items():
            if shape.numel() and name != "head.head.weight":
                assert weights.read(name, shape).shape == shape


def file(folders: pytest.TempPathFactory, name: str, data: bytes) -> Path:
    """Written anew for every example: a fixture of the test would be made once for all of them."""
    path = folders.getbasetemp() / "anything" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path
