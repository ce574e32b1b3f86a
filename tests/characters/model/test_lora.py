"""Adapters merged while reading, against peft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn

from characters.errors import UserError
from characters.model.block import Block
from characters.model.lora import Lora

TARGETS = ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "cross_attn.q", "cross_attn.o"]


class Plain:
    """A source of a module's own weights."""

    def __init__(self, module: nn.Module) -> None:
        self.tensors = dict(module.named_parameters())

    def check(self, shapes: dict[str, torch.Size]) -> None:
        pass

    def read(self, name: str, shape: torch.Size) -> torch.Tensor:
        return self.tensors[name].detach().clone()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(32, 64, 2) for _ in range(2))


@pytest.mark.parametrize("prefix", ["base_model.model.", "base_model.model._orig_mod."])
@pytest.mark.parametrize("adapter", ["", ".default"])
def test_merged_weights_are_pefts(tmp_path: Path, prefix: str, adapter: str) -> None:
    torch.manual_seed(0)
    model = Model()
    source = Plain(model)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules=TARGETS))
    tensors = {}
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_()
            plain = name.replace(".default", adapter).replace("base_model.model.", prefix)
            tensors[plain] = parameter.detach().clone()
    save_file(tensors, tmp_path / "lora.safetensors")
    source.tensors = {n: p.detach().clone() for n, p in source.tensors.items()}
    lora = Lora(source, tmp_path / "lora.safetensors", alpha=6)
    lora.check(shapes)
    merged = dict(adapted.merge_and_unload().named_parameters())
    changed = 0
    for name, shape in shapes.items():
        got = lora.read(name, shape)
        assert (got - merged[name]).abs().max() < 1e-5, name
        changed += not torch.equal(got, source.tensors[name])
    assert changed == 2 * len(TARGETS)


def test_what_is_no_adapter_for_this_model_is_said(tmp_path: Path) -> None:
    source, file = Plain(Model()), tmp_path / "lora.safetensors"
    name = "base_model.model.blocks.0.self_attn.q"
    whole = {f"{name}.lora_A.weight": torch.ones(4, 32), f"{name}.lora_B.weight": torch.ones(32, 4)}
    shapes = {"blocks.0.self_attn.q.weight": torch.Size((32, 32))}
    for tensors, message in (
        ({f"{name}.lora_A.weight": torch.ones(4, 32)}, "lacks lora_A or lora_B"),
        ({"blocks.0.self_attn.q.weight": torch.ones(2)}, "not part of a LoRA adapter"),
    ):
        save_file(tensors, file)
        with pytest.raises(UserError, match=message):
            Lora(source, file, alpha=4)
    save_file(whole, file)
    Lora(source, file, alpha=4).check(shapes)
    with pytest.raises(UserError, match="was made for another model"):
        Lora(source, file, alpha=4).check({"blocks.0.self_attn.q.weight": torch.Size((16, 16))})
    with pytest.raises(UserError, match="adds to none"):
        Lora(source, file, alpha=4).check({"other.weight": torch.Size((32, 32))})
    file.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="not a readable"):
        Lora(source, file, alpha=4)
