"""Curated colours. Sampled identities mix and jitter them; no colour is random in the whole cube."""

from __future__ import annotations

import torch
from torch import Tensor


def rgb(code: str) -> list[float]:
    """'#rrggbb' as three numbers in [0, 1]."""
    return [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def table(*codes: str) -> Tensor:
    """Colours as float32 [n, 3]."""
    return torch.tensor([rgb(code) for code in codes])


# each row: ground, ground low, disc, cloth, second cloth (collar, hat), accent
SCHEMES = torch.stack(
    [
        table("#f6d6c1", "#f2b8a0", "#fbe8da", "#2f5d62", "#e9f0ea", "#e76f51"),
        table("#cfe3f5", "#9fc4e8", "#e6f2fb", "#27374d", "#f4f1ea", "#f2a541"),
        table("#e6dcf5", "#c6b3e6", "#f3edfb", "#5b3f8c", "#f6d365", "#ff7aa2"),
        table("#d7ead9", "#a5cfae", "#ebf6ec", "#c8553d", "#f7ede2", "#2a6f6b"),
        table("#fbe3a8", "#f6c667", "#fdf1cf", "#1f4e79", "#fefaf0", "#d1495b"),
        table("#bfe7e3", "#7cc8c3", "#dff5f2", "#ef6f6c", "#fff3e4", "#28536b"),
        table("#f7cfd8", "#ef9fb0", "#fce6eb", "#3d405b", "#f4f1de", "#81b29a"),
        table("#2e3a59", "#1d2540", "#40507a", "#f2a65a", "#f6ead4", "#6fd0c8"),
        table("#264b4e", "#163336", "#35666a", "#e8c07d", "#f7f1e3", "#e4572e"),
        table("#dcdfe6", "#b3bac8", "#eef0f4", "#4d6a9a", "#fdfdfd", "#e8a33d"),
        table("#f2e6d5", "#dcc3a1", "#faf3e8", "#7a4a3a", "#efe2cf", "#2b7a78"),
        table("#c9d6ff", "#9aaef0", "#e2e9ff", "#f25f8c", "#fff0f4", "#3a3f8f"),
        table("#4a2545", "#2f142b", "#6a3a63", "#f0a6a0", "#fbe9e2", "#f6c453"),
        table("#dff0c8", "#b3d98b", "#eff8e2", "#3b6e8f", "#f7f7ea", "#f2784b"),
        table("#ffd9b8", "#ffb27f", "#ffecd9", "#6b4fa0", "#fff6ec", "#1f8a8a"),
        table("#b9cbd6", "#86a1b3", "#d7e2e9", "#a63d40", "#f3ece2", "#e9b872"),
    ]
)
SKIN = table(
    "#fde3d3", "#f8d2b8", "#f1c09c", "#e8b088", "#d99a6c", "#c68453", "#a9683e", "#8a5032", "#6c3d28", "#523024"
)
HAIR = table(
    "#17131a", "#241a1c", "#3a2620", "#54352a", "#74482f", "#96613a", "#b98347", "#d9ab62", "#efd18d", "#a8452a",
    "#c8623a", "#8d8f98", "#c9ccd3", "#ecebe8",
)  # fmt: skip
BRIGHT_HAIR = table("#ef6f9a", "#46b5b0", "#7a5cc4", "#3f7fd0", "#f29a4a", "#8fbf5a")
IRIS = table("#4a2f20", "#6b4426", "#8a5a2b", "#5f7f3a", "#3f8f6b", "#3a7fb8", "#5aa0d0", "#6f7f92", "#4b5fa8")
LIPS = table("#c4504f", "#d4686a", "#b83f55", "#a94a44", "#cf5c7d", "#8f3040")
FABRIC = table("#3f5f8f", "#a8505f", "#4f7f6f", "#c98a4a", "#6f5a8f", "#2f3a4f", "#d8b8a8", "#7fa8b8")
FRAMES = table("#1f2430", "#5a3424", "#8f3f3a", "#2f5068", "#b58a3f", "#3f4f3f")
METAL = table("#d9dee6", "#a9b7c9", "#7fa3b8", "#8fc4b8", "#f0c879", "#e88f72", "#b79fd8", "#6f7f9a", "#f2eee4")
SCREEN = table("#16202e", "#1c2b3a", "#241f38", "#10302f", "#2a1c2c")
LED = table("#6ff0e0", "#ffd166", "#ff8fa3", "#8fc7ff", "#b6f08a", "#f2f6ff")

# fur of each species: pairs of coat and muzzle
FUR = {
    "cat": (
        table("#e8a15a", "#8d93a1", "#3b3a42", "#f1e4d2", "#b98a63"),
        table("#fdf0df", "#e9ebf0", "#d8d6dc", "#ffffff", "#f3e3cf"),
    ),
    "dog": (
        table("#c98f55", "#8a5a3a", "#e7cfa6", "#5a4a44", "#f0e2cd"),
        table("#f7e7cf", "#ecd6bd", "#fbf4e6", "#d8c8b8", "#ffffff"),
    ),
    "bear": (
        table("#8b5a3c", "#5f3f30", "#b98252", "#e9e6e1", "#6f5a55"),
        table("#dcb48c", "#c09a7c", "#ecd0a8", "#ffffff", "#cdb8ac"),
    ),
    "fox": (
        table("#e2703a", "#d9562b", "#c98a5f", "#b9bcc6", "#f08a4b"),
        table("#fff4e8", "#fdeee2", "#fbf0e4", "#ffffff", "#fff6ea"),
    ),
    "rabbit": (
        table("#e9ddd2", "#c7b09c", "#a99c98", "#f7f3ef", "#8f7765"),
        table("#fffaf4", "#f6ebdf", "#efeae6", "#ffffff", "#e5d5c5"),
    ),
    "panda": (
        table("#f6f3ee", "#f3efe9", "#ece4da", "#f8f8f6", "#f1e6d8"),
        table("#ffffff", "#fdfaf6", "#fbf6ef", "#ffffff", "#fff8ee"),
    ),
}  # fmt: skip
