"""A DiT whose blocks multiply in FP8: weights rounded once, activations by the operation that makes them.

mode "static": one scale for each weight and one for each activation, which `calibrate` finds. It is cuBLASLt's fastest
product, and a step computes no scales.
mode "dynamic": a scale for each output of a weight and each row of an activation, taken from the row itself.

Embeddings, head, norms and modulation keep their dtype: they are small, and their rounding would show.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from characters.model.block import Block, CrossAttention, takes
from characters.model.dit import DiT
from kernels.fp8 import FP8_MAX, TINY, Precision, Quantised, quantise
from kernels.linear import linear_fp8

Mode: TypeAlias = Literal["static", "dynamic"]

# Static scales leave room for magnitudes above those that calibration saw. The room costs a bit of range at the low end
# and no precision.
HEADROOM = 2.0


class Fp8Linear(nn.Module):
    """`nn.Linear` on FP8 operands.

    Args:
        weight: [out, in]; bias: [out].
        static: one scale for the weight and, after `set_peak`, one for the input; else one for each row of both.
    """

    def __init__(self, weight: Tensor, bias: Tensor, *, static: bool) -> None:
        super().__init__()
        size = weight.abs().amax() if static else weight.abs().amax(1, keepdim=True)
        data, scale = quantise(weight, size.float().clamp_min(TINY) / FP8_MAX)
        self.static = static
        self.register_buffer("weight", data)
        self.register_buffer("weight_scale", scale)
        self.register_buffer("bias", bias.clone())
        self.register_buffer("input_scale", None)
        self.peak: Tensor | None = None

    @property
    def takes(self) -> Precision:
        """How the input must be stored: with this static scale, or with a scale for each row."""
        return "rows" if self.input_scale is None else self.input_scale

    def observe(self) -> None:
        """Record the largest magnitude of the input in `peak` from now on."""
        self.peak = torch.zeros((), device=self.weight.device)

    def set_peak(self, peak: Tensor) -> None:
        """Use a static scale from now on, for inputs up to HEADROOM times `peak`, a float32 scalar."""
        self.input_scale = (peak * HEADROOM).clamp_min(TINY) / FP8_MAX
        self.peak = None

    def forward(self, x: Quantised) -> Tensor:
        """x [..., in] -> [..., out] in the bias's dtype."""
        if self.peak is not None:
            torch.maximum(self.peak, x.scale.amax() * FP8_MAX, out=self.peak)
        shape, out = x.data.shape[:-1], len(self.bias)
        by_row = x.scale.dim() > 0
        flat = Quantised(x.data.flatten(0, -2), x.scale.flatten(0, -2) if by_row else x.scale)
        # An uncalibrated static layer takes a scale for each row; the product then needs one for each output too.
        scale = self.weight_scale.expand(out, 1).contiguous() if by_row else self.weight_scale
        return linear_fp8(flat, Quantised(self.weight, scale), self.bias, self.bias.dtype).unflatten(0, shape)


def quantise_dit(dit: DiT, mode: Mode = "static") -> None:
    """Quantise all blocks and injectors in place. Static layers and the KV cache still need `calibrate`."""
    for block in dit.blocks.values():
        quantise_block(block, mode)
    for injector in dit.injectors.values():
        quantise_cross_attention(injector.attention, mode)


def quantise_block(block: Block, mode: Mode) -> None:
    """Quantise one block in place; its q, k and v become one product."""
    static, own = mode == "static", block.self_attn
    parts = own.q, own.k, own.v
    own.qkv = Fp8Linear(torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts]), static=static)
    del own.q, own.k, own.v
    for parent, name in ((own, "o"), (block.ffn, "0"), (block.ffn, "2")):
        _quantise(parent, name, static)
    quantise_cross_attention(block.cross_attn, mode)


def quantise_cross_attention(attention: CrossAttention, mode: Mode) -> None:
    """Quantise one cross-attention in place."""
    # Condition tokens are few and computed once, so their scales can be exact.
    for name, static in (("q", mode == "static"), ("o", mode == "static"), ("k", False), ("v", False)):
        _quantise(attention, name, static)


def _quantise(parent: nn.Module, name: str, static: bool) -> None:
    layer = getattr(parent, name)
    setattr(parent, name, Fp8Linear(layer.weight, layer.bias, static=static))


def fp8_layers(dit: DiT) -> dict[str, Fp8Linear]:
    """The quantised layers by name."""
    return {name: layer for name, layer in dit.named_modules() if isinstance(layer, Fp8Linear)}


def needs_calibration(dit: DiT) -> bool:
    """Whether static layers still wait for `calibrate`."""
    return any(layer.static and layer.input_scale is None for layer in fp8_layers(dit).values())


def takes_static(dit: DiT) -> bool:
    """Whether the layer after attention takes its input with a static scale."""
    return isinstance(takes(next(iter(dit.blocks.values())).self_attn.o), Tensor)


def head_scales(dit: DiT) -> Tensor | None:
    """float32 [layers, 3, heads], scales of q, k and v in the KV cache; None if the cache keeps the model's dtype."""
    scales = [block.self_attn.head_scales for block in dit.blocks.values()]
    return None if scales[0] is None else torch.stack(scales)


def set_head_peaks(dit: DiT, peaks: Tensor) -> None:
    """Keep the KV cache in FP8 from now on; peaks float32 [layers, 3, heads], largest magnitudes of q, k and v."""
    for block, peak in zip(dit.blocks.values(), peaks, strict=True):
        block.self_attn.head_scales = (peak * HEADROOM).clamp_min(TINY) / FP8_MAX
