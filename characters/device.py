"""Which device a model runs on, and in which precision it is fast there."""

from __future__ import annotations

import torch

from characters.errors import UserError


def choose_device(name: str) -> torch.device:
    """Resolve "auto", "cpu", "cuda" or "cuda:N".

    Raises:
        UserError: not a device, or not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"{name!r} is not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    # PyTorch keeps eight bits of an index: "cuda:999" becomes cuda:-25, "cuda:256" the first GPU.
    wrapped = device.index is not None and name != str(device)
    if device.type == "cuda" and (wrapped or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"device {name!r} is not there: PyTorch sees {torch.cuda.device_count()} GPU(s); use cpu")
    return device


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it, float32 elsewhere."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float32
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
