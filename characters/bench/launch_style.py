"""The step as it is first written, on the same share of work: the baseline of every improvement.

It is bfloat16 throughout. Its cache of unrotated keys is concatenated anew every chunk and rotated whole when it is
read. Every operation is a kernel of its own, in the order of the formulas. NCCL exchanges q, k, v and outputs.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from characters.model.config import ModelConfig
from characters.model.plan import Shard, block_parameters
from characters.model.rope import Rope3D
from kernels.attention import attend


class LaunchStyleStep:
    """One GPU's share of a step.

    Args:
        config: of the model; weights are random.
        shard: this GPU's share.
        conditions: condition tokens.
        group: of the ranks of the sequence group; None = one rank alone, with random data in place of its peers'.
        device: a GPU.

    Attributes:
        distinct: layers that have weights and a cache of their own; if memory is short, the others reuse these.
    """

    def __init__(
        self,
        config: ModelConfig,
        shard: Shard,
        conditions: int,
        group: dist.ProcessGroup | None,
        device: torch.device,
    ) -> None:
        dit = config.dit
        self._dim, self._head_dim = dit.dim, dit.dim // dit.num_heads
        self._heads, self._ranks, self._rows = dit.num_heads // shard.ranks, shard.ranks, shard.rows
        self._tokens, self._context, self._group = config.tokens, config.sink + config.ring, group
        self._layers, self._passes = shard.layers[1] - shard.layers[0], config.passes
        chunk = self._tokens * self._heads * self._head_dim
        layer_bytes = 2 * (block_parameters(dit) + 2 * (self._context - 1) * chunk)
        room = torch.cuda.mem_get_info(device)[0] - 10 * 2 * self._context * chunk * 4
        self.distinct = max(1, min(self._layers, int(0.85 * room) // layer_bytes))

        def random(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(shape, device=device, dtype=torch.bfloat16).mul_(scale)

        d, f = dit.dim, dit.ffn_dim
        sizes = [(d, d)] * 6 + [(f, d), (d, f)]
        self._weights = [[random(*s, scale=s[1] ** -0.5) for s in sizes] for _ in range(self.distinct)]
        past = (self._context - 1) * self._tokens, self._heads, self._head_dim
        self._cache = [(random(*past), random(*past)) for _ in range(self.distinct)]
        self._told = [random(conditions, dit.num_heads, self._head_dim) for _ in range(2)]
        self._modulation = random(6, d, scale=0.1)
        self._norm = torch.ones(d, device=device, dtype=torch.bfloat16)
        self._x = random(self._rows, d)
        self._peers = random(3, self._ranks * self._rows, self._heads, self._head_dim)
        self._back = random(self._rows, d)
        rope = Rope3D(self._head_dim, config.grid, dit.rope_theta)
        tables = [rope.table(position, device=device) for position in range(self._context * config.frames)]
        self._cos, self._sin = (torch.cat(x)[:, None] for x in zip(*tables, strict=True))

    @torch.inference_mode()
    def __call__(self) -> Tensor:
        """Run it, eagerly."""
        x = self._x
        for _ in range(self._passes):
            for layer in range(self._layers):
                x = self._layer(x, layer % self.distinct)
        return x

    def _layer(self, x: Tensor, layer: int) -> Tensor:
        q, k, v, o, cross_q, cross_o, up, down = self._weights[layer]
        shift1, scale1, gate1, shift2, scale2, gate2 = self._modulation
        h = self._layer_norm(x) * (1 + scale1) + shift1
        q, k, v = self._rms_norm(h @ q.t()), self._rms_norm(h @ k.t()), h @ v.t()
        q, k, v = self._to_heads(torch.stack((q, k, v)))
        keys, values = (
            torch.cat((past, new[: self._tokens])) for past, new in zip(self._cache[layer], (k, v), strict=True)
        )
        queries = slice(len(keys) - self._tokens, len(keys))
        out = attend(
            self._rotate(q, self._cos[queries], self._sin[queries]), self._rotate(keys, self._cos, self._sin), values
        )
        x = x + gate1 * (self._to_rows(out) @ o.t())
        h = self._layer_norm(x) * self._norm + self._norm
        q = self._rms_norm(h @ cross_q.t()).unflatten(-1, (-1, self._head_dim))
        x = x + attend(q, *self._told).flatten(1) @ cross_o.t()
        h = self._layer_norm(x) * (1 + scale2) + shift2
        return x + gate2 * (F.gelu(h @ up.t(), approximate="tanh") @ down.t())

    def _layer_norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self._dim,), eps=1e-6)

    def _rms_norm(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self._norm

    @staticmethod
    def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x[: len(cos)].float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)

    def _to_heads(self, qkv: Tensor) -> Tensor:
        """[3, rows, dim] -> [3, ranks * rows, own heads, head_dim]."""
        parts = qkv.unflatten(-1, (self._ranks, self._heads, self._head_dim)).permute(2, 0, 1, 3, 4).contiguous()
        if self._ranks == 1:
            return parts[0]
        if self._group is None:
            self._peers[:, : self._rows] = parts[0]
            return self._peers
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=self._group)
        return received.transpose(0, 1).flatten(1, 2)

    def _to_rows(self, out: Tensor) -> Tensor:
        """[tokens, own heads, head_dim] -> [rows, dim]."""
        out = out.flatten(1)
        if self._ranks == 1:
            return out
        out = F.pad(out, (0, 0, 0, self._ranks * self._rows - len(out)))
        if self._group is None:
            self._back[:, : out.shape[1]] = out[: self._rows]
            return self._back
        received = torch.empty_like(out)
        dist.all_to_all_single(received, out, group=self._group)
        return received.unflatten(0, (self._ranks, -1)).transpose(0, 1).flatten(1)
