"""A tiny window model with random weights, as its files would be published; and a hub that serves them."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from characters.model.audio_projection import AudioProjection
from characters.model.config import load_model_config
from characters.model.dit import DiT
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import Wav2Vec2

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = """
height: 48
width: 32
latent_channels: 16
latent_stride: 8
dit: {dim: 48, ffn_dim: 64, num_heads: 2, num_layers: 2, concat_reference: true}
autoencoder: {wan: {encoder_dim: 8, decoder_dim: 8, residual_blocks: 1}}
sampler: {source: reference, end: -0.001}
window:
  heard: 2.0
  ear: {conv_dim: 16, dim: 24, ffn_dim: 40, heads: 3, layers: 3, positions: 8, groups: 4}
  projection: {layers: 3, dim: 24, hidden: 20, tokens: 4, out: 48}
portraits: [photograph]
weights: tiny
files:
"""
# The name here; the repository; the file there; what is put before its tensors' names.
FILES = (
    ("dit.safetensors", "soul/head", "Model_Pro/diffusion_pytorch_model.safetensors", ""),
    ("autoencoder.safetensors", "soul/head", "VAE_Wan/Wan2.1_VAE.pth", ""),
    ("ear.safetensors", "meta/wav2vec2", "model.safetensors", ""),
    ("lora.safetensors", "leap/talk", "lora/adapter_model.safetensors", ""),
    ("audio_proj.safetensors", "leap/talk", "audio_proj_step_10400.pt", "audio_proj."),
)


def write_files(folder: Path) -> None:
    """The files, in folders named as their repositories."""
    torch.manual_seed(0)
    path = folder / "sizes.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(MODEL.replace("files:\n", "").replace("weights: tiny\n", ""))
    config = load_model_config(str(path))
    path.unlink()
    window, wan = config.window, config.autoencoder.wan
    assert window is not None and wan is not None
    dit = _random(DiT(config).state_dict())
    dit["patch_embedding.weight"] = dit["patch_embedding.weight"].view(48, 32, 1, 2, 2)
    dit["text_embedding.0.weight"] = torch.zeros(3)
    projection = _random(AudioProjection(window.projection).state_dict())
    dit |= {f"audio_proj.{name}": tensor for name, tensor in projection.items()}
    ear = {_ear_name(name): tensor for name, tensor in _random(Wav2Vec2(window.ear).state_dict()).items()}
    direction = ear.pop("wav2vec2.encoder.pos_conv_embed.conv.weight")
    ear["wav2vec2.encoder.pos_conv_embed.conv.weight_v"] = direction
    ear["wav2vec2.encoder.pos_conv_embed.conv.weight_g"] = direction.norm(dim=(0, 1), keepdim=True)
    ear |= {"lm_head.weight": torch.zeros(2), "wav2vec2.masked_spec_embed": torch.zeros(24)}
    layer = "base_model.model.blocks.0.self_attn.q"
    lora = {f"{layer}.lora_A.weight": torch.randn(2, 48), f"{layer}.lora_B.weight": torch.randn(48, 2)}
    contents = (dit, _random(WanVae(wan, 16).state_dict()), ear, lora, projection)
    for (_, repository, file, _), tensors in zip(FILES, contents, strict=True):
        target = folder / repository.partition("/")[2] / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".safetensors":
            save_file(tensors, target)
        else:
            torch.save(tensors, target)


def write_config(path: Path, folder: Path, *, digests: bool = True, revision: str = COMMIT) -> str:
    """The model's config, which names the files below `folder`; its path."""
    lines = [MODEL]
    for name, repository, file, prefix in FILES:
        data = (folder / repository.partition("/")[2] / file).read_bytes()
        lines.append(f"  - {{name: {name}, repository: {repository}, file: {file}, licence: Apache-2.0}}\n")
        if digests:
            lines[-1] = lines[-1].replace("}", f", size: {len(data)}, sha256: {hashlib.sha256(data).hexdigest()}}}")
        if prefix:
            lines[-1] = lines[-1].replace("}", f", prefix: {prefix}}}")
        lines[-1] = lines[-1].replace("}", f", revision: {revision}}}")
    path.write_text("".join(lines))
    return str(path)


def _random(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.randn_like(tensor) * 0.05 for name, tensor in state.items()}


def _ear_name(name: str) -> str:
    for ours, theirs in (
        ("conv_layers.", "feature_extractor.conv_layers."),
        ("feature_norm.", "feature_projection.layer_norm."),
        ("projection.", "feature_projection.projection."),
        ("position.", "encoder.pos_conv_embed.conv."),
    ):
        if name.startswith(ours):
            return "wav2vec2." + theirs + name.removeprefix(ours)
    return f"wav2vec2.encoder.{name}"


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that hangs up is no news."""


@dataclass
class Hub:
    """A hub over HTTP.

    Attributes:
        folder: of the repositories.
        status: what it answers instead of files, by file; 0 = the file.
        cut: after so many bytes of a file the connection is cut, once.
        etags: what it says of a file's SHA-256, by file, where that is a lie.
        asked: (method, file, range) of every request.
        authorised: whether a request had a token.
    """

    folder: Path
    status: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    authorised: bool = False

    def __enter__(self) -> Hub:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                hub._answer(self)

            def do_GET(self) -> None:
                hub._answer(self)

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        repository, _, rest = request.path.lstrip("/").partition("/resolve/")
        _, _, file = rest.partition("/")
        given = request.headers.get("Range", "")
        self.asked.append((request.command, file, given))
        self.authorised |= "Authorization" in request.headers
        path = self.folder / repository.partition("/")[2] / file
        status = self.status.get(file, 0) or (200 if path.is_file() else 404)
        if status != 200:
            request.send_response(status)
            if status == 404:
                request.send_header("X-Error-Code", "EntryNotFound")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        data = path.read_bytes()
        begin = int(given.removeprefix("bytes=").partition("-")[0]) if given else 0
        request.send_response(206 if begin else 200)
        request.send_header("X-Repo-Commit", COMMIT)
        request.send_header("X-Linked-Etag", f'"{self.etags.get(file) or hashlib.sha256(data).hexdigest()}"')
        request.send_header("X-Linked-Size", str(len(data)))
        request.send_header("Accept-Ranges", "bytes")
        if begin:
            request.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(data) - begin))
        request.end_headers()
        if request.command == "HEAD":
            return
        end = self.cut.pop(file, len(data))
        request.wfile.write(data[begin:end])
        if end < len(data):
            request.close_connection = True
