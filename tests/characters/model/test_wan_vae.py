"""The Wan VAE against diffusers, and what its live form promises: streams apart, nothing left behind."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from safetensors.torch import save_file

from characters.errors import UserError
from characters.model.config import WanVaeConfig
from characters.model.wan_vae.checkpoint import load_vae, translate
from characters.model.wan_vae.stream import WanStreams
from characters.model.wan_vae.vae import WanVae
from characters.model.wan_vae.workspace import Workspace
from kernels.i420 import signal_to_i420

# On a GPU the kernels and the captured graph are what is tested; on a CPU their references.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SIZE = (2, 4)  # of a latent frame

WAN_2_1 = WanVaeConfig(encoder_dim=8, decoder_dim=16)
WAN_2_2 = WanVaeConfig(encoder_dim=8, decoder_dim=16, patch=2, shortcuts=True)


def published(config: WanVaeConfig) -> AutoencoderKLWan:
    """diffusers' model of the same sizes, with random weights."""
    torch.manual_seed(0)
    wan_2_2 = {"z_dim": 48, "is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12}
    statistics = {"latents_mean": [0.0] * 48, "latents_std": [1.0] * 48}  # of no effect on what it computes
    more = {**wan_2_2, **statistics} if config.shortcuts else {}
    theirs = AutoencoderKLWan(base_dim=config.encoder_dim, decoder_base_dim=config.decoder_dim, **more)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("gamma"):
                parameter.uniform_(0.5, 1.5)
    return theirs.eval().requires_grad_(False).to(DEVICE)


@functools.cache
@torch.inference_mode(False)
def both(name: str) -> tuple[AutoencoderKLWan, WanVae]:
    config = {"2.1": WAN_2_1, "2.2": WAN_2_2}[name]
    theirs = published(config)
    ours = WanVae(config, theirs.config.z_dim).eval().requires_grad_(False)
    ours.load_state_dict(translate(theirs.state_dict(), config))
    return theirs, ours.to(DEVICE)


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest error, relative to the largest value."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def latents(vae: WanVae, count: int, seed: int = 1) -> torch.Tensor:
    shape = (count, len(vae.post_quant_conv.weight), *SIZE)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def raw(vae: WanVae, normalised: torch.Tensor) -> torch.Tensor:
    """[n, c, h, w] as [1, c, n, h, w] without normalisation, as diffusers takes and gives it."""
    return (normalised * vae.std.view(-1, 1, 1) + vae.mean.view(-1, 1, 1)).movedim(0, 1)[None]


@pytest.mark.parametrize("name", ["2.1", "2.2"])
@torch.inference_mode()
def test_whole_clips_equal_diffusers(name: str) -> None:
    theirs, ours = both(name)
    z = latents(ours, 4)
    expected = theirs.decode(raw(ours, z)).sample[0].movedim(0, 1)
    assert expected.std() > 0.1
    workspace = ours.workspace()
    for _ in range(2):  # nothing is left of a clip before
        assert off((ours.decode_clip(z, workspace) * 2 - 1).clamp(-1, 1), expected) <= 1e-4
    workspace.clear(0)  # and several latents at a time are one after another
    first, others = (ours.decode(part, workspace, first=len(part) == 1).value() for part in z.split((1, 3)))
    assert off(torch.cat((first, others))[..., :3].permute(0, 3, 1, 2).clamp(-1, 1), expected) <= 1e-4

    video = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    expected = theirs.encode((video * 2 - 1).movedim(0, 1)[None]).latent_dist.mode()
    workspace = ours.workspace()
    for _ in range(2):
        assert off(raw(ours, ours.encode_clip(video, workspace)), expected) <= 1e-4
    assert off(raw(ours, ours.encode_image(video[:1])), expected[:, :, :1]) <= 1e-4


@pytest.mark.parametrize("name", ["2.1", "2.2"])
@torch.inference_mode()
def test_chunk_by_chunk_equals_diffusers(name: str) -> None:
    """Every chunk on its own, against diffusers' own cache of the frames before, the first chunk included."""
    theirs, ours = both(name)
    z = latents(ours, 4)
    workspace = Workspace()
    workspace.slot = torch.tensor(0, device=DEVICE)
    theirs.clear_cache()
    unquantised = theirs.post_quant_conv(raw(ours, z))
    for i, latent in enumerate(z):
        theirs._conv_idx = [0]
        expected = theirs.decoder(
            unquantised[:, :, i : i + 1],
            feat_cache=theirs._feat_map,
            feat_idx=theirs._conv_idx,
            first_chunk=i == 0,
        )
        if theirs.config.patch_size:
            expected = expected.unflatten(1, (3, 2, 2)).permute(0, 1, 4, 5, 3, 6, 2).flatten(5, 6).flatten(3, 4)
        frames = ours.decode(latent[None], workspace, first=i == 0).value()[..., :3]
        assert len(frames) == (1 if i == 0 else 4)
        assert off(frames, expected[0].permute(1, 2, 3, 0)) <= 1e-4


def original_names(config: WanVaeConfig) -> dict[str, str]:
    """Parameter names of the original code by those of this package, written out from the original's structure."""
    inner = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6"}
    inner["conv_shortcut"] = "shortcut"
    names = {"quant_conv": "conv1", "post_quant_conv": "conv2"}
    for side, folder, blocks, sampler, theirs in (
        ("encoder", "down_blocks", 2, "downsampler", "downsamples"),
        ("decoder", "up_blocks", 3, "upsampler", "upsamples"),
    ):
        names |= {f"{side}.conv_in": f"{side}.conv1", f"{side}.norm_out": f"{side}.head.0"}
        names |= {f"{side}.conv_out": f"{side}.head.2"}
        middle = f"{side}.mid_block"
        for part, number in ("resnets.0", 0), ("resnets.1", 2):
            names |= {f"{middle}.{part}.{ours}": f"{side}.middle.{number}.{name}" for ours, name in inner.items()}
        for part in "norm", "to_qkv", "proj":
            names[f"{middle}.attentions.0.{part}"] = f"{side}.middle.1.{part}"
        flat = 0
        for level in range(4):
            for layer in range(blocks + 1):
                place = f"{level}.{theirs}.{layer}" if config.shortcuts else str(flat)
                flat += 1
                if layer < blocks:
                    for ours, name in inner.items():
                        names[f"{side}.{folder}.{level}.resnets.{layer}.{ours}"] = f"{side}.{theirs}.{place}.{name}"
                else:
                    names[f"{side}.{folder}.{level}.{sampler}.conv"] = f"{side}.{theirs}.{place}.resample.1"
                    names[f"{side}.{folder}.{level}.{sampler}.time_conv"] = f"{side}.{theirs}.{place}.time_conv"
    return names


@pytest.mark.parametrize("name", ["2.1", "2.2"])
def test_original_checkpoints_load(name: str, tmp_path) -> None:
    _, ours = both(name)
    config = {"2.1": WAN_2_1, "2.2": WAN_2_2}[name]
    names = original_names(config)
    original = {}
    for key, tensor in ours.state_dict().items():
        part, _, parameter = key.rpartition(".")
        original[f"{names[part]}.{parameter}"] = tensor
    save_file(original, tmp_path / "vae.safetensors")
    torch.manual_seed(9)
    again = load_vae(
        WanVae(config, len(ours.post_quant_conv.weight)),
        dataclasses.replace(config, weights=str(tmp_path / "vae.safetensors")),
    )
    assert all(
        torch.equal(a, b.cpu()) for a, b in zip(again.state_dict().values(), ours.state_dict().values(), strict=True)
    )
    if name == "2.1":  # diffusers' own converter, which knows Wan 2.1 alone, takes them too: the names are right
        both(name)[0].load_state_dict(convert_wan_vae_to_diffusers(original), strict=True)


def test_checkpoint_of_other_sizes_is_refused(tmp_path) -> None:
    theirs, _ = both("2.1")
    save_file({k: v.contiguous() for k, v in theirs.state_dict().items()}, tmp_path / "vae.safetensors")
    wider = WanVaeConfig(encoder_dim=8, decoder_dim=24, weights=str(tmp_path / "vae.safetensors"))
    with pytest.raises(UserError, match="another model"):
        load_vae(WanVae(wider, 16), wider)


def streams(count: int = 1, **options) -> WanStreams:
    return WanStreams(both("2.1")[1], SIZE, streams=count, capture=DEVICE == "cuda", **options)


def decoded(stream, z: torch.Tensor) -> torch.Tensor:
    """The chunks after the portrait, which is z's first."""
    stream.reset(z[:1])
    return torch.stack([stream.decode(latent[None]).clone() for latent in z[1:]])


def test_a_stream_shows_what_the_clip_shows() -> None:
    _, ours = both("2.1")
    z = latents(ours, 3)
    with torch.inference_mode():
        clip = ours.decode_clip(z).permute(0, 2, 3, 1) * 2 - 1
    got = decoded(streams(compact=False).open(), z).flatten(0, 1)
    assert (got.int() - signal_to_i420(clip[1:].contiguous()).int()).abs().max() <= 1
    rgb = decoded(streams(compact=False, i420=False).open(), z)
    assert rgb.shape == (2, 1, 4, 16, 32, 3)


@pytest.mark.parametrize("compact", [False, True])
def test_reset_leaks_nothing(compact: bool) -> None:
    _, ours = both("2.1")
    z, other = latents(ours, 3), latents(ours, 3, seed=7)
    stream = streams(compact=compact).open()
    expected = decoded(stream, z)
    assert not torch.equal(decoded(stream, other), expected)
    assert torch.equal(decoded(stream, z), expected)


@pytest.mark.parametrize("compact", [False, True])
def test_interleaved_streams_show_what_they_show_alone(compact: bool) -> None:
    _, ours = both("2.1")
    clips = [latents(ours, 4, seed) for seed in (1, 7)]
    alone = [decoded(streams(compact=compact).open(), z) for z in clips]
    shared = streams(2, compact=compact)
    pair = [shared.open(), shared.open()]
    for stream, z in zip(pair, clips, strict=True):
        stream.reset(z[:1])
    for i in range(3):
        for stream, z, expected in zip(pair, clips, alone, strict=True):
            assert torch.equal(stream.decode(z[i + 1 : i + 2]), expected[i])
    with pytest.raises(RuntimeError, match="open"):
        shared.open()
    pair[0].close()
    assert torch.equal(decoded(shared.open(), clips[0]), alone[0])


def test_a_latent_of_another_size_changes_nothing() -> None:
    _, ours = both("2.1")
    z = latents(ours, 3)
    stream = streams().open()
    expected = decoded(stream, z)
    stream.reset(z[:1])
    stream.decode(z[1:2])
    for wrong in (z[1:2, :, :1], z[1:2].long()):
        with pytest.raises(ValueError, match="expected a latent"):
            stream.decode(wrong)
    assert torch.equal(stream.decode(z[2:]), expected[1])


def test_compact_cache_takes_half_and_shows_the_same() -> None:
    _, ours = both("2.1")
    z = latents(ours, 4)
    signals = []
    sizes = []
    for compact in (False, True):
        workspace = Workspace(compact=compact)
        workspace.slot = torch.tensor(0, device=DEVICE)
        with torch.inference_mode():
            chunks = [ours.decode(latent[None], workspace, first=i == 0).value()[..., :3] for i, latent in enumerate(z)]
        signals.append(torch.cat(chunks).clamp(-1, 1))
        sizes.append(workspace.bytes_per_stream)
    assert 10 * math.log10(4 / float((signals[0] - signals[1]).square().mean())) >= 45
    # Bytes instead of float32, and eight bytes of range for each pixel of 16 or more channels.
    assert sizes[1] / sizes[0] < 0.4


def test_history_brings_a_fresh_decoder_to_the_same_picture() -> None:
    """The layers of this network, one after another, look 38 latents back; no more, so this is exact."""
    _, ours = both("2.1")
    stream = streams(compact=False).open()
    z = latents(ours, stream.history + 3)
    expected = decoded(stream, z)[-1]
    assert torch.equal(decoded(streams(compact=False).open(), z[-stream.history - 1 :])[-1], expected)
