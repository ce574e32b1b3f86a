"""Wan2.2-S2V with a ring for each pass once more, composed of diffusers' parts and read from published names."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from diffusers.models.embeddings import get_timestep_embedding
from diffusers.models.normalization import AdaLayerNorm
from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanAttnProcessor,
    WanRotaryPosEmbed,
    WanTransformerBlock,
)
from torch import Tensor

HEADS = 2
BLOCK = {
    "self_attn.q": "attn1.to_q", "self_attn.k": "attn1.to_k", "self_attn.v": "attn1.to_v",
    "self_attn.o": "attn1.to_out.0", "self_attn.norm_q": "attn1.norm_q", "self_attn.norm_k": "attn1.norm_k",
    "cross_attn.q": "attn2.to_q", "cross_attn.k": "attn2.to_k", "cross_attn.v": "attn2.to_v",
    "cross_attn.o": "attn2.to_out.0", "cross_attn.norm_q": "attn2.norm_q", "cross_attn.norm_k": "attn2.norm_k",
    "norm3": "norm2", "ffn.0": "ffn.net.0.proj", "ffn.2": "ffn.net.2",
}  # fmt: skip


class Remembering:
    """Self-attention that keeps what the sink and the last chunks wrote, one place for each chunk.

    The sink's keys are kept as they were before their rotation and rotated at every read.
    """

    def __init__(self, ring: int) -> None:
        self.ring, self.sink, self.chunks = ring, None, []
        self.own = self.anchors = None

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):  # type: ignore[no-untyped-def]
        q, k = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(hidden_states))
        q, k, v = (x.unflatten(2, (HEADS, -1)) for x in (q, k, attn.to_v(hidden_states)))
        if self.own is None:
            self.sink = k, v
            keys, values, q = turn(k, self.anchors), v, turn(q, self.anchors)
        else:
            q = turn(q, self.own)
            self.chunks = [*self.chunks, (turn(k, self.own), v)][-self.ring :]
            keys, values = (torch.cat(x, 1) for x in zip(*self.chunks, strict=True))
            keys, values = torch.cat((keys, turn(self.sink[0], self.anchors)), 1), torch.cat((values, self.sink[1]), 1)
        o = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, keys, values)))
        return attn.to_out[0](o.transpose(1, 2).flatten(2))


def turn(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate [1, n, heads, head_dim] by cos and sin [n, 1, head_dim]."""
    cos, sin = angles
    crossed = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    return x * cos + crossed * sin


class Double:
    """One session.

    Args:
        state: tensors under the published names.
        injected: blocks after which sound enters.
        ring: chunks.
        steps: levels.
        text: [1, n, text_dim].
        reference: [16, 1, h, w]; clip: [16, 19, h, w], latents of the portrait.
    """

    def __init__(self, state, injected, ring, steps, text, reference, clip):  # type: ignore[no-untyped-def]
        self.state, self.steps, self.injected = state, steps, injected
        self.dim = state["blocks.0.norm3.weight"].shape[0]
        self.rope = WanRotaryPosEmbed(self.dim // HEADS, (1, 2, 2), 1024)
        self.grid = reference.shape[2] // 2, reference.shape[3] // 2
        self.blocks = [self.block(i) for i in range(sum(name.endswith("ffn.0.bias") for name in state))]
        self.memory = [[Remembering(ring) for _ in steps] for _ in self.blocks]
        self.injectors = [self.injector(i) for i in range(len(injected))]
        self.text = self.linear(F.gelu(self.linear(text, "text_embedding.0"), approximate="tanh"), "text_embedding.2")
        self.index = 0
        packed = [self.convolved(clip[:, 18:], "frame_packer.proj", (1, 2, 2))]
        packed += [self.convolved(clip[:, 16:18], "frame_packer.proj_2x", (2, 4, 4))]
        packed += [self.convolved(clip[:, :16], "frame_packer.proj_4x", (4, 8, 8))]
        kinds = state["trainable_cond_mask.weight"]
        shown = self.convolved(reference, "patch_embedding", (1, 2, 2)) + kinds[1]
        sink = torch.cat((shown, torch.cat(packed) + kinds[2]))[None]
        _, modulation = self.time(0.0)
        for level in range(len(steps)):
            x = sink
            for block, memory in zip(self.blocks, self.memory, strict=True):
                memory[level].own, memory[level].anchors = None, self.anchors()
                block.attn1.processor = memory[level]
                x = block(x, self.text, modulation, None)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def convolved(self, x: Tensor, name: str, stride: tuple[int, int, int]) -> Tensor:
        found = F.conv3d(x[None], self.state[f"{name}.weight"], self.state[f"{name}.bias"], stride)
        return found[0].flatten(1).T

    def block(self, index: int) -> WanTransformerBlock:
        prefix = f"blocks.{index}."
        own = {name[len(prefix) :]: x for name, x in self.state.items() if name.startswith(prefix)}
        renamed = {"scale_shift_table": own.pop("modulation")}
        renamed |= {f"{BLOCK[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": x for name, x in own.items()}
        block = WanTransformerBlock(self.dim, len(own["ffn.0.bias"]), HEADS, cross_attn_norm=True).eval()
        block.load_state_dict(renamed)
        return block

    def injector(self, index: int) -> tuple[AdaLayerNorm, WanAttention]:
        norm = AdaLayerNorm(self.dim, output_dim=2 * self.dim, chunk_dim=1)
        prefix = f"audio_injector.injector_adain_layers.{index}.linear"
        norm.linear.load_state_dict({leaf: self.state[f"{prefix}.{leaf}"] for leaf in ("weight", "bias")})
        attention = WanAttention(
            self.dim,
            HEADS,
            self.dim // HEADS,
            1e-6,
            cross_attention_dim_head=self.dim // HEADS,
            processor=WanAttnProcessor(),
        )
        prefix = f"audio_injector.injector.{index}."
        own = {name[len(prefix) :]: x for name, x in self.state.items() if name.startswith(prefix)}
        renamed = {}
        for name, x in own.items():
            part, _, leaf = name.rpartition(".")
            renamed[f"{ {'o': 'to_out.0'}.get(part, part if 'norm' in part else f'to_{part}') }.{leaf}"] = x
        attention.load_state_dict({name.strip(): x for name, x in renamed.items()})
        return norm, attention

    def time(self, level: float) -> tuple[Tensor, Tensor]:
        sinus = get_timestep_embedding(torch.tensor([1000 * level]), 256, flip_sin_to_cos=True, downscale_freq_shift=0)
        embedding = self.linear(F.silu(self.linear(sinus, "time_embedding.0")), "time_embedding.2")
        return embedding, self.linear(F.silu(embedding), "time_projection.1").unflatten(1, (6, -1))

    def angles(self, time: int, rows: list[int], columns: list[int]) -> tuple[Tensor, Tensor]:
        """cos, sin [rows * columns, 1, head_dim] of one latent frame."""
        sizes = [self.rope.t_dim, self.rope.h_dim, self.rope.w_dim]
        found = []
        for table, sign in ((self.rope.freqs_cos, 1.0), (self.rope.freqs_sin, -1.0 if time < 0 else 1.0)):
            t, h, w = table.split(sizes, 1)
            shape = len(rows), len(columns), -1
            parts = (sign * t[abs(time)])[None, None], h[rows][:, None], w[columns][None]
            found.append(torch.cat([part.expand(*shape) for part in parts], -1).flatten(0, 1)[:, None].float())
        return found[0], found[1]

    def anchors(self) -> tuple[Tensor, Tensor]:
        rows, columns = self.grid
        whole = list(range(rows)), list(range(columns))
        half = [np.linspace(0, n - 1, n // 2).astype(int).tolist() for n in self.grid]
        quarter = [np.linspace(0, n - 1, n // 4).astype(int).tolist() for n in self.grid]
        places = [(30 + 3 * self.index, whole), (-1, whole), (-3, half)]
        places += [(-t, quarter) for t in (19, 14, 9, 4)]
        found = [self.angles(time, *where) for time, where in places]
        return tuple(torch.cat(x) for x in zip(*found, strict=True))  # type: ignore[return-value]

    def chunk(self, noise: Tensor, states: Tensor) -> Tensor:
        """noise [16, 3, h, w], states [layers, channels, 12] -> [16, 3, h, w]."""
        spoken, whole = self.speech(states)
        x, levels = noise, [*self.steps, 0.0]
        for step, level in enumerate(self.steps):
            x = x + (levels[step + 1] - level) * self.velocity(x, step, spoken, whole)
        self.index += 1
        return x

    def velocity(self, x: Tensor, step: int, spoken: Tensor, whole: Tensor) -> Tensor:
        rows, columns = (list(range(n)) for n in self.grid)
        own = [self.angles(3 * self.index + frame, rows, columns) for frame in range(3)]
        embedding, modulation = self.time(self.steps[step])
        h = self.convolved(x, "patch_embedding", (1, 2, 2))
        h = (h + self.state["cond_encoder.bias"] + self.state["trainable_cond_mask.weight"][0])[None]
        for number, (block, memory) in enumerate(zip(self.blocks, self.memory, strict=True)):
            ring = memory[step]
            ring.own = tuple(torch.cat(x) for x in zip(*own, strict=True))
            ring.anchors = self.anchors()
            block.attn1.processor = ring
            h = block(h, self.text, modulation, None)
            if number in self.injected:
                norm, attention = self.injectors[self.injected.index(number)]
                frames = h[0].unflatten(0, (3, -1))
                h = h + attention(norm(frames, temb=whole), spoken).flatten(0, 1)[None]
        shift, scale = (self.state["head.modulation"] + embedding[:, None]).chunk(2, 1)
        out = self.linear(F.layer_norm(h, (self.dim,), eps=1e-6) * (1 + scale) + shift, "head.head")[0]
        out = out.view(3, *self.grid, 2, 2, 16)  # frames, rows, columns, row and column within the patch, channel
        return out.permute(5, 0, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)

    def speech(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The published way: 73 copies of the first frame before the chunk, and all but its 3 latents cut."""
        name = "casual_audio_encoder"
        weights = F.silu(self.state[f"{name}.weights"])
        states = torch.cat((states[..., :1].expand(-1, -1, 73), states), -1)[None]
        x = ((states * weights) / weights.sum(1, keepdim=True)).sum(1)

        def causal(x: Tensor, layer: str, stride: int) -> Tensor:
            prefix = f"{name}.encoder.{layer}.conv"
            padded = F.pad(x, (2, 0), mode="replicate")
            x = F.conv1d(padded, self.state[f"{prefix}.weight"], self.state[f"{prefix}.bias"], stride)
            x = x.transpose(1, 2)
            return x

        def normed(x: Tensor) -> Tensor:
            return F.silu(F.layer_norm(x, x.shape[-1:], eps=1e-6))

        def rest(x: Tensor) -> Tensor:
            x = normed(causal(normed(x).transpose(1, 2), "conv2", 2))
            return normed(causal(x.transpose(1, 2), "conv3", 2))

        local = causal(x, "conv1_local", 1)[0].unflatten(1, (4, -1)).transpose(0, 1)
        spoken = rest(local).transpose(0, 1)
        padding = self.state[f"{name}.encoder.padding_tokens"][0].expand(len(spoken), -1, -1)
        whole = self.linear(rest(causal(x, "conv1_global", 1)), f"{name}.encoder.final_linear")[0]
        return torch.cat((spoken, padding), 1)[19:], whole[19:]
