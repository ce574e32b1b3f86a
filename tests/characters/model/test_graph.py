import contextlib
import gc
import weakref
from unittest.mock import MagicMock

import torch

from characters.model.graph import Graph


def test_on_a_cpu_the_function_is_just_called():
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return 2 * x

    graph = Graph(double)
    for i in range(3):
        assert torch.equal(graph(torch.full((2,), float(i))), torch.full((2,), 2.0 * i))
    assert len(calls) == 3


def test_a_captured_graph_goes_with_its_owner(monkeypatch):
    """Or it would hold NCCL's communicator after the owner has gone."""

    class Owner:
        def __init__(self):
            self.graph = Graph(self.double, torch.device("cuda"))

        def double(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    for name in ("Stream", "CUDAGraph", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *args, **kwargs: contextlib.nullcontext())
    owner = Owner()
    for _ in range(2):
        assert torch.equal(owner.graph(torch.ones(2)), torch.full((2,), 2.0))
    gone = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert gone() is None
    finally:
        gc.enable()
