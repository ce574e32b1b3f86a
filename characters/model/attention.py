"""Softmax attention of one chunk, or of a batch of them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from kernels.attention import attend


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scales: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Every query attends to every key.

    Args:
        q: [(batch,) queries, heads, head_dim]; k, v: [(batch,) keys, heads, head_dim].
        scales: float32 [heads] each, of FP8 q, k and v; without a batch only.

    Returns:
        [(batch,) queries, heads * head_dim], bfloat16 for FP8 operands.
    """
    if q.dim() == 3:
        q_scale, k_scale, v_scale = scales or (None, None, None)
        return attend(q, k, v, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale).flatten(1)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2).flatten(2)
