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
