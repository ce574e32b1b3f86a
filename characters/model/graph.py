"""A function of tensors replayed as one CUDA graph: a step launches once instead of kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Graph:
    """Captures a function at its first call on a GPU and replays it from then on; on a CPU it just calls it.

    The function must do the same work on the same buffers every time: no host decisions, no growing allocations. It may
    read and write buffers of its owner (the KV cache is one), who keeps them. The next call overwrites the result.

    A captured graph lets go of its function: often the owner's method, it would make a cycle of the two, in which the
    graph outlives its owner. NCCL closes only when no graph with a collective of its own is left.

    Args:
        function: of tensors whose shapes, dtypes and device never change; returns one tensor.
        device: where it runs; default: that of its first input.
    """

    WARM_UPS = 3

    def __init__(self, function: Callable[..., Tensor], device: torch.device | None = None) -> None:
        self._function: Callable[..., Tensor] | None = function
        self._device = device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor | None] = []
        self._output: Tensor | None = None

    def __call__(self, *inputs: Tensor | None) -> Tensor:
        """The function of `inputs`. An input that is None stays None for ever."""
        device = self._device or inputs[0].device
        if device.type != "cuda":
            return self._function(*inputs)
        if self._graph is None:
            self._capture(inputs, device)
            self._function = None
        for static, given in zip(self._inputs, inputs, strict=True):
            if static is not None:
                static.copy_(given)
        self._graph.replay()
        return self._output

    def _capture(self, inputs: tuple[Tensor | None, ...], device: torch.device) -> None:
        self._inputs = [None if x is None else x.clone() for x in inputs]
        # Libraries choose algorithms and allocate workspaces at their first calls, which capture forbids.
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(self.WARM_UPS):
                self._function(*self._inputs)
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads, of other roles and of NCCL, must not be able to spoil the capture, nor it their work.
        # What forks off from the main line (`kernels.attention_fa3`) has to wait for it: so its priority is higher.
        main = torch.cuda.Stream(device, priority=-1)
        with torch.cuda.graph(self._graph, stream=main, capture_error_mode="thread_local"):
            self._output = self._function(*self._inputs)
