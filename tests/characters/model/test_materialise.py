"""Weights from files, ours and Wan's, whole, in shards and in parts."""

import pytest
import torch
from safetensors.torch import save_file

from characters.errors import UserError
from characters.model.config import DiTConfig, ModelConfig
from characters.model.dit import DiT
from characters.model.materialise import RandomWeights, SafetensorsWeights, build_dit
from characters.model.quantise import fp8_layers

CONFIG = ModelConfig(
    height=64, width=48, latent_channels=4, latent_stride=8,
    dit=DiTConfig(dim=64, ffn_dim=128, num_heads=4, num_layers=3, patch=2, text_dim=32),
)  # fmt: skip


@pytest.fixture
def dit() -> DiT:
    torch.manual_seed(0)
    return DiT(CONFIG).eval()


def source(path, dtype=torch.float32) -> SafetensorsWeights:
    return SafetensorsWeights(path, CONFIG, "cpu", dtype)


def write_shards(state: dict[str, torch.Tensor], folder) -> None:
    names = sorted(state)
    for shard in range(3):
        save_file({name: state[name].contiguous() for name in names[shard::3]}, folder / f"model-{shard}.safetensors")


def test_parts_of_a_random_model_are_those_of_the_whole():
    whole = dict(build_dit(CONFIG, RandomWeights("cpu", torch.float32)).named_parameters())
    seen = set()
    for span in ((0, 1), (1, 3)):
        part = dict(build_dit(CONFIG, RandomWeights("cpu", torch.float32), layers=span).named_parameters())
        assert all(torch.equal(p, whole[name]) for name, p in part.items())
        seen |= part.keys()
    assert seen == whole.keys()
    half = build_dit(CONFIG, RandomWeights("cpu", torch.bfloat16))
    assert all(torch.equal(p, whole[name].bfloat16()) for name, p in half.named_parameters())


def test_shards_are_read_into_a_part(dit, tmp_path):
    write_shards(dit.state_dict(), tmp_path)
    steps = []
    part = build_dit(CONFIG, source(tmp_path), layers=(1, 3), progress=lambda done, total: steps.append((done, total)))
    state = dit.state_dict()
    assert all(torch.equal(p, state[name]) for name, p in part.named_parameters())
    assert part.patch_embedding is None and part.head is not None and steps == [(0, 2), (1, 2), (2, 2)]
    quantised = build_dit(CONFIG, source(tmp_path), fp8="static")
    assert len(fp8_layers(quantised)) == 24
    assert not any(p.is_meta for p in [*quantised.parameters(), *quantised.buffers()])


@torch.inference_mode()
def test_original_wan_checkpoints_mean_the_same(dit, tmp_path):
    """Wan embeds patches by a convolution and puts the head's rows together pixel by pixel, channels last."""
    state, (rows, columns) = dict(dit.state_dict()), CONFIG.grid
    convolution, head = torch.randn(64, 4, 1, 2, 2), torch.randn(16, 64)
    state["patch_embedding.weight"], state["head.head.weight"] = convolution, head
    state = {name.replace("conditioning.text.", "text_embedding."): tensor for name, tensor in state.items()}
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "wan.safetensors")
    ours = build_dit(CONFIG, source(tmp_path / "wan.safetensors"))

    latent, x = torch.randn(1, 4, *CONFIG.latent_size), torch.randn(1, CONFIG.tokens, 64)
    expected = torch.nn.functional.conv3d(latent[:, :, None], convolution, stride=(1, 2, 2)).flatten(2).transpose(1, 2)
    bias = ours.patch_embedding.bias
    torch.testing.assert_close(ours.patch_embedding(ours.patchify(latent)) - bias, expected, atol=1e-5, rtol=1e-4)
    pixels = (x @ head.t()).view(1, rows, columns, 2, 2, 4)
    expected = torch.einsum("bhwpqc->bchpwq", pixels).reshape(1, 4, 2 * rows, 2 * columns)
    made = ours.unpatchify(ours.head.head(x) - ours.head.head.bias)
    # Biases are permuted like the rows; here they are taken out on both sides.
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-4)


def test_unfit_files_are_named_before_anything_is_read(dit, tmp_path):
    with pytest.raises(UserError, match="no safetensors files"):
        source(tmp_path)
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="not a readable"):
        source(tmp_path)
    (tmp_path / "bad.safetensors").unlink()
    state = dit.state_dict()
    write_shards({name: t for name, t in state.items() if name != "blocks.1.norm3.weight"}, tmp_path)
    with pytest.raises(UserError, match=r"lacks 1 .*blocks\.1\.norm3\.weight"):
        build_dit(CONFIG, source(tmp_path))
    write_shards(state | {"blocks.0.ffn.0.weight": torch.zeros(64, 64)}, tmp_path)
    with pytest.raises(UserError, match=r"another model: blocks\.0\.ffn\.0\.weight is \[64, 64\], not \[128, 64\]"):
        build_dit(CONFIG, source(tmp_path))
