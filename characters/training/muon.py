"""Muon (Jordan et al. 2024): momentum whose matrix updates are orthogonalised, batched over matrices of one shape."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# Coefficients of the quintic Newton-Schulz iteration, as published with the reference implementation.
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(x: Tensor, steps: int = 5) -> Tensor:
    """[n, rows, columns] -> bfloat16 of the same shape, each matrix with singular values of about one."""
    transposed = x.shape[1] > x.shape[2]
    x = (x.mT if transposed else x).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if transposed else x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum for matrices; a convolution counts as the matrix [out, in * kernel].

    torch.optim.Muon takes one matrix at a time. At these sizes its launches cost more than the model's own step.

    Args:
        params: of two or more dimensions.
        lr: learning rate.
        momentum: of the gradient average.
        weight_decay: decoupled, times lr.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.015, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update from the gradients in place."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for shape, params in shapes.items():
                averages = [
                    self.state[p].setdefault("momentum", torch.zeros_like(p, memory_format=torch.contiguous_format))
                    for p in params
                ]
                grads = [p.grad for p in params]
                torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
                matrices = torch.stack(torch._foreach_lerp(grads, averages, group["momentum"])).flatten(2)
                scale = max(1.0, matrices.shape[1] / matrices.shape[2]) ** 0.5
                updates = (orthogonalise(matrices) * scale).to(params[0].dtype).unflatten(2, shape[1:])
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(params, list(updates.unbind()), alpha=-group["lr"])
