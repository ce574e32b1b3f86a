"""The window generator once more, composed of diffusers', transformers' and scikit-image's parts."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from skimage.color import rgb2lab, xyz2rgb, xyz_tristimulus_values
from torch import Tensor
from transformers import Wav2Vec2Config as EarConfig
from transformers import Wav2Vec2Model

from characters.model.audio_projection import AudioProjectionConfig
from characters.model.config import AutoencoderConfig, DiTConfig, ModelConfig, SamplerConfig, WanVaeConfig, WindowConfig
from characters.model.wav2vec2 import Wav2Vec2Config

DIM, HEADS, LAYERS = 48, 2, 2
EAR = Wav2Vec2Config(conv_dim=16, dim=24, ffn_dim=40, heads=3, layers=3, positions=8, groups=4)
PRO = SamplerConfig(steps=[1.0, 0.9375, 0.8333333, 0.625], noise="fresh")
LEAP = SamplerConfig(source="reference", end=-0.001)


def config(sampler: SamplerConfig) -> ModelConfig:
    """A window model of 48 x 32 pixels."""
    projection = AudioProjectionConfig(layers=3, dim=24, hidden=20, tokens=4, out=DIM)
    return ModelConfig(
        height=48,
        width=32,
        latent_channels=16,
        latent_stride=8,
        dit=DiTConfig(dim=DIM, ffn_dim=64, num_heads=HEADS, num_layers=LAYERS, concat_reference=True),
        autoencoder=AutoencoderConfig(wan=WanVaeConfig(encoder_dim=8, decoder_dim=8, residual_blocks=1)),
        sampler=sampler,
        window=WindowConfig(frames=9, history=5, fps=25, ear=EAR, projection=projection, heard=2.0),
    )


class Folded(WanAttnProcessor):
    """Each latent frame attends to its own tokens."""

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):  # type: ignore[no-untyped-def]
        frames = 9
        rows, tokens = (x[0].unflatten(0, (frames, -1)) for x in (hidden_states, encoder_hidden_states))
        return super().__call__(attn, rows, tokens, None, None).flatten(0, 1)[None]


class Double:
    """One session.

    Args:
        dit: state of ours; vae: diffusers'; ear: transformers'; projection: state of ours.
        portrait: uint8 [H, W, 3].
    """

    def __init__(
        self,
        sampler: SamplerConfig,
        dit: dict[str, Tensor],
        vae: AutoencoderKLWan,
        ear: Wav2Vec2Model,
        projection: dict[str, Tensor],
        portrait: np.ndarray,
    ) -> None:
        self.sampler, self.vae, self.ear, self.projection = sampler, vae, ear, projection
        self.dit = transformer(dit)
        self.mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
        self.std = torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)
        picture = torch.from_numpy(portrait).permute(2, 0, 1).float() / 255
        self.lab = rgb2lab(picture.permute(1, 2, 0).double().numpy())
        self.reference = self.encode(picture.expand(33, -1, -1, -1))
        self.history = self.reference[:, :, :1]

    def encode(self, frames: Tensor) -> Tensor:
        """[n, 3, H, W] in [0, 1] -> [1, 16, latents, h, w]."""
        found = self.vae.encode(frames.movedim(0, 1)[None] * 2 - 1).latent_dist.mode()
        return (found - self.mean) / self.std

    def chunk(self, sound: Tensor, noise: Tensor, before: Tensor | None = None) -> Tensor:
        """float [33, 3, H, W]; `before`: the five frames that it goes on from."""
        history = self.history if before is None else self.encode(before)
        tokens = self.tokens(sound)
        steps, drawn = self.sampler.steps, [n.movedim(0, 1)[None] for n in noise]
        x = self.reference if self.sampler.source == "reference" else drawn.pop(0)
        for i, level in enumerate(steps):
            x = torch.cat((history, x[:, :, history.shape[2] :]), 2)
            velocity = self.dit(
                torch.cat((x, self.reference), 1), torch.tensor([1000 * level]), tokens, return_dict=False
            )[0]
            if self.sampler.source == "reference":
                x = x - 1.001 * velocity
            elif i + 1 < len(steps):
                x = (1 - steps[i + 1]) * (x - level * velocity) + steps[i + 1] * drawn.pop(0)
            else:
                x = x - level * velocity
        x = torch.cat((history, x[:, :, history.shape[2] :]), 2)
        frames = self.vae.decode(x * self.std + self.mean, return_dict=False)[0][0].movedim(0, 1)
        return torch.stack([self.matched(frame) for frame in (frames / 2 + 0.5).clamp(0, 1)])

    def tokens(self, sound: Tensor) -> Tensor:
        """[1, 9 * tokens, dim]."""
        ear, p = self.ear, self.projection
        sound = (sound - sound.mean()) / (sound.var(correction=0) + 1e-7).sqrt()
        features = ear.feature_extractor(sound[None])
        features = F.interpolate(features, size=50, mode="linear", align_corners=True).transpose(1, 2)
        hidden, _ = ear.feature_projection(features)
        hidden = ear.encoder.layer_norm(hidden + ear.encoder.pos_conv_embed(hidden))
        states = []
        for layer in ear.encoder.layers:
            found = layer(hidden)
            hidden = found[0] if isinstance(found, tuple) else found
            states.append(hidden[0])
        heard = torch.stack(states, 1)[-33:]  # [33, layers, dim]

        def at(position: int) -> Tensor:
            return heard[min(max(position, 0), 32)]

        rows = [F.linear(torch.stack([at(i) for i in range(-2, 3)]).flatten(), p["proj1.weight"], p["proj1.bias"])]
        for first in range(1, 33, 4):
            wanted = [first - 2, first - 1, first, first + 1, first + 2, first + 3, first + 4, first + 5]
            rows.append(
                F.linear(torch.stack([at(i) for i in wanted]).flatten(), p["proj1_vf.weight"], p["proj1_vf.bias"])
            )
        x = F.relu(F.linear(F.relu(torch.stack(rows)), p["proj2.weight"], p["proj2.bias"]))
        x = F.linear(x, p["proj3.weight"], p["proj3.bias"]).unflatten(1, (-1, DIM))
        return F.layer_norm(x, (DIM,), p["norm.weight"], p["norm.bias"]).flatten(0, 1)[None]

    def matched(self, frame: Tensor) -> Tensor:
        """With the portrait's mean and spread in Lab."""
        lab = rgb2lab(frame.permute(1, 2, 0).double().numpy())
        lab = (lab - lab.mean((0, 1))) / (lab.std((0, 1)) + 1e-6) * self.lab.std((0, 1)) + self.lab.mean((0, 1))
        # scikit-image clips colours that there are not, before it goes on to RGB; the peers clip RGB alone.
        y = (lab[..., 0] + 16) / 116
        f = np.stack((y + lab[..., 1] / 500, y, y - lab[..., 2] / 200), -1)
        xyz = np.where(f > 0.2068966, f**3, (f - 16 / 116) / 7.787) * xyz_tristimulus_values(
            illuminant="D65", observer="2"
        )
        return torch.from_numpy(xyz2rgb(xyz)).permute(2, 0, 1).float().clamp(0, 1)


def transformer(state: dict[str, Tensor]) -> WanTransformer3DModel:
    """diffusers' transformer with our weights, by the original names and layouts."""
    original = dict(state)
    original["patch_embedding.weight"] = state["patch_embedding.weight"].view(DIM, 32, 1, 2, 2)
    for leaf in ("weight", "bias"):
        head = state[f"head.head.{leaf}"]
        original[f"head.head.{leaf}"] = head.unflatten(0, (16, 4)).transpose(0, 1).flatten(0, 1)
    model = WanTransformer3DModel(
        num_attention_heads=HEADS, attention_head_dim=DIM // HEADS, in_channels=32, out_channels=16, text_dim=DIM,
        freq_dim=256, ffn_dim=64, num_layers=LAYERS,
    ).eval()  # fmt: skip
    model.condition_embedder.text_embedder = torch.nn.Identity()
    for block in model.blocks:
        block.attn2.set_processor(Folded())
    model.load_state_dict(convert_wan_transformer_to_diffusers(original))
    return model


def ear() -> Wav2Vec2Model:
    """transformers' encoder, with random weights."""
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 3, "num_hidden_layers": 3}
    positions = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
    model = Wav2Vec2Model(EarConfig(**sizes, **positions, conv_dim=[16] * 7))
    return model.eval()
