"""Who a character is: named traits, sampled from styles and palettes or written by hand.

A style (a haircut, a species, a way to dress) is a range for each of its traits. The renderer sees numbers only, so
hand-made characters and random ones share one space. Lengths are pixels, colours RGB in [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from characters.drawing import palettes, styles
from characters.drawing.scene import Identities

Range = tuple[float, float]


class Sampler:
    """Draws columns of n numbers from one seeded CPU generator."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.generator = torch.Generator().manual_seed(seed)

    def unit(self, *size: int) -> Tensor:
        return torch.rand(self.count, *size, generator=self.generator)

    def between(self, low: float | Tensor, high: float | Tensor) -> Tensor:
        return low + (high - low) * self.unit()

    def chance(self, probability: float | Tensor) -> Tensor:
        """1.0 with this probability, else 0.0."""
        return (self.unit() < probability).float()

    def choice(self, weights: Sequence[float]) -> Tensor:
        """Index [n] drawn with these weights."""
        return torch.multinomial(torch.tensor(weights), self.count, True, generator=self.generator)

    def colour(self, colours: Tensor, jitter: float = 0.02, mix: float = 0.35) -> Tensor:
        """A colour [n, 3] of the table, moved a little towards another one and jittered."""
        first, second = (torch.randint(len(colours), (self.count,), generator=self.generator) for _ in range(2))
        mixed = torch.lerp(colours[first], colours[second], self.unit(1) * mix)
        return (mixed + (self.unit(3) * 2 - 1) * jitter).clamp(0, 1)

    def style(self, ranges: Sequence[Mapping[str, Range]], index: Tensor) -> dict[str, Tensor]:
        """Every trait of the styles, uniform in the range of the chosen style."""
        columns = {}
        for name in ranges[0]:
            low, high = torch.tensor([style[name] for style in ranges])[index].unbind(1)
            columns[name] = self.between(low, high)
        return columns


def pick(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Rows of `yes` where mask is 1, else of `no`."""
    return torch.where((mask > 0.5).view(-1, *[1] * (yes.ndim - 1)), yes, no)


def sample_identities(n: int, *, seed: int, device: str | torch.device = "cpu") -> Identities:
    """Random characters: about 60 % people, 25 % animals, 15 % robots.

    Numbers are drawn on the CPU, so that a seed gives the same characters on every device.

    Returns:
        dict of float32 [n] or [n, 3] on `device`; "kind" is 0 human, 1 animal, 2 robot.
    """
    s = Sampler(n, seed)
    kind = s.choice((0.60, 0.25, 0.15))
    human, animal, robot = ((kind == k).float() for k in range(3))
    t: dict[str, Tensor] = {"kind": kind.float()}
    for name, (low, high) in styles.COMMON.items():
        t[name] = s.between(low, high)

    species = s.choice([1.0] * len(styles.SPECIES))
    shells = s.choice([1.0] * len(styles.ROBOTS))
    tables = [[styles.HUMAN], list(styles.SPECIES.values()), list(styles.ROBOTS.values())]
    drawn = [s.style(ranges, index) for ranges, index in zip(tables, (kind * 0, species, shells), strict=True)]
    for name in styles.HUMAN:
        t[name] = human * drawn[0][name] + animal * drawn[1][name] + robot * drawn[2][name]

    cut = s.choice(list(styles.HAIR_WEIGHTS.values()))
    t |= s.style(list(styles.HAIR.values()), cut)
    t["has_hair"] = t["has_hair"] * human
    flip = s.chance(0.5) * 2 - 1
    t["hair_part"], t["knot_x"] = t["hair_part"] * flip, t["knot_x"] * torch.where(t["knot_pair"] > 0.5, 1.0, flip)
    wear = s.choice(list(styles.CLOTHES_WEIGHTS.values()))
    t |= s.style(list(styles.CLOTHES.values()), wear)
    fabric = t.pop("is_fabric") * human

    # features of some characters; nobody has both a beard and make-up
    adult = s.chance(0.45) * human * (1 - fabric)
    t["has_beard"] = adult * s.chance(0.3)
    t["has_moustache"] = adult * torch.maximum(t["has_beard"], s.chance(0.2))
    t["has_goatee"] = adult * s.chance(0.12) * (1 - t["has_beard"])
    made_up = human * (1 - adult) * s.chance(0.6)
    t["lash"] = made_up * s.between(2.0, 4.0)
    t["has_glasses"] = s.chance(0.2) * torch.where(robot > 0, 0.0, 1.0)
    t["has_earring"] = human * (1 - adult) * s.chance(0.35) * (1 - fabric)
    t["has_hat"] = human * s.chance(0.09) * (1 - fabric) * (t["has_knot"] < 0.5)
    t["has_hat"] = t["has_hat"] * (t["hair_top"] < 18)
    t["has_ears"] = t["has_ears"] * (1 - fabric)
    for name, most in (("hair_top", 6.0), ("quiff", 0.0), ("hair_curl", 2.0)):
        t[name] = torch.where(t["has_hat"] > 0, t[name].clamp(max=most), t[name])
    t["has_headphones"] = human * s.chance(0.07) * (1 - fabric) * (1 - t["has_hat"]) * (t["hair_top"] < 18)
    t["has_band"] = s.chance(0.16) * (1 - t["has_lapel"]) * (1 - t["has_v"])
    t["has_roll"] = torch.maximum(t["has_roll"], fabric)
    for name in ("has_hood", "has_lapel", "has_tie", "has_v", "has_flaps"):
        t[name] = t[name] * (1 - fabric)
    t["light"] = s.chance(0.5) * 2 - 1

    add_colours(t, s, human, animal, robot, species, fabric, made_up)
    return {name: value.float().to(device) for name, value in t.items()}


def add_colours(
    t: dict[str, Tensor],
    s: Sampler,
    human: Tensor,
    animal: Tensor,
    robot: Tensor,
    species: Tensor,
    fabric: Tensor,
    made_up: Tensor,
) -> None:
    """Sample the base colours of n characters and derive the rest."""
    scheme = s.choice([1.0] * len(palettes.SCHEMES))
    other = torch.where(s.unit() < 0.3, s.choice([1.0] * len(palettes.SCHEMES)), scheme)
    names = ("ground", "ground_low", "disc", "cloth", "collar", "accent")
    for i, name in enumerate(names):
        source = palettes.SCHEMES[scheme if i < 3 else other, i]
        t[name] = (source + (s.unit(3) - 0.5) * 0.07).clamp(0, 1)
    skin = s.colour(palettes.SKIN, 0.015, 0.5)
    coats = torch.stack([pair[0] for pair in palettes.FUR.values()])
    pales = torch.stack([pair[1] for pair in palettes.FUR.values()])
    coat = torch.randint(coats.shape[1], (s.count,), generator=s.generator)
    fur = (coats[species, coat] + (s.unit(3) - 0.5) * 0.06).clamp(0, 1)
    t["muzzle"] = (pales[species, coat] + (s.unit(3) - 0.5) * 0.03).clamp(0, 1)
    t["skin"] = pick(human, skin, pick(animal, fur, s.colour(palettes.METAL, 0.03)))
    natural = s.colour(palettes.HAIR, 0.02, 0.2)
    t["hair"] = pick(s.chance(0.12), s.colour(palettes.BRIGHT_HAIR, 0.04), natural)
    t["brow_colour"] = t["hair"] * 0.72 * (1 - 0.25 * t["hair"].mean(1, keepdim=True))
    t["hair"] = pick(fabric, s.colour(palettes.FABRIC, 0.04), t["hair"])
    t["collar"] = pick(fabric, t["hair"] * 0.93, t["collar"])
    rolled = t["has_roll"] * (1 - fabric)
    t["collar"] = pick(rolled * s.chance(0.7), torch.lerp(t["cloth"], torch.ones(3), 0.15), t["collar"])
    t["iris"] = s.colour(palettes.IRIS, 0.03)
    t["eye_white"] = torch.full((s.count, 3), 0.98)
    t["screen"] = s.colour(palettes.SCREEN, 0.02)
    led = s.colour(palettes.LED, 0.03)
    dark_eye = (robot * s.chance(0.6))[:, None]
    t["eye_white"] = torch.lerp(t["eye_white"], t["screen"] * 0.8, dark_eye)
    t["iris"] = torch.lerp(t["iris"], led * 0.85, dark_eye)
    t["led"] = led
    t["muzzle"] = pick(robot, t["skin"] * 0.80, t["muzzle"])
    t["brow_colour"] = pick(robot, torch.lerp(led, t["screen"], 0.35), t["brow_colour"])
    t["brow_colour"] = pick(animal, t["skin"] * 0.55, t["brow_colour"])
    paint = pick(made_up, s.colour(palettes.LIPS, 0.03), t["skin"] * torch.tensor([0.84, 0.60, 0.58]))
    t["lip"] = pick(human, paint, pick(animal, t["muzzle"] * 0.55 * torch.tensor([0.95, 0.72, 0.70]), led * 0.8))
    t["glasses"] = s.colour(palettes.FRAMES, 0.02, 0.1)
    t["hat"] = pick(s.chance(0.5), t["accent"], s.colour(palettes.FABRIC, 0.03))
    derive_colours(t)


def derive_colours(t: dict[str, Tensor]) -> None:
    """Add, in place, every colour that follows from the base colours: shades, lights, lips, lids."""
    white = torch.ones(3)
    human, animal, robot = ((t["kind"] == k).float()[:, None] for k in range(3))
    skin, bright = t["skin"], t["skin"].mean(1, keepdim=True)
    warm = torch.tensor([0.90, 0.79, 0.77]) * human + torch.tensor([0.88, 0.82, 0.82]) * animal
    t["shade"] = warm + torch.tensor([0.82, 0.83, 0.88]) * robot
    t["shade_deep"] = t["shade"] * torch.tensor([0.84, 0.80, 0.82])
    t["skin_light"] = torch.lerp(skin.pow(0.72), white * torch.tensor([1.0, 0.97, 0.92]), 0.12)
    t["neck"] = torch.lerp(skin * (0.45 + 0.55 * t["shade"]), skin * 0.62, robot)
    t["ear"] = skin * torch.tensor([0.95, 0.90, 0.89])
    t["ear"] = torch.lerp(t["ear"], skin * 0.68, robot)
    patched = (t["has_patch"] * animal[:, 0])[:, None]
    dark = torch.tensor([0.16, 0.15, 0.19])
    t["patch"] = dark.expand_as(skin)
    t["ear"] = torch.lerp(t["ear"], t["patch"], patched)
    pink = torch.tensor([0.93, 0.62, 0.62])
    t["ear_inner"] = torch.lerp(skin * t["shade"] * 0.93, torch.lerp(skin, pink, 0.6), animal)
    t["ear_inner"] = torch.lerp(t["ear_inner"], t["patch"] * 1.7, patched)
    t["ear_inner"] = torch.lerp(t["ear_inner"], t["led"], robot)
    t["glow_tint"] = 1 + 0.5 * t["accent"]
    t["blush"] = torch.lerp(skin, torch.tensor([0.96, 0.42, 0.42]) * (0.45 + 0.55 * bright), 0.55)
    for name in ("hair", "cloth", "hat"):
        t[f"{name}_dark"] = t[name] * torch.tensor([0.72, 0.70, 0.76])
        t[f"{name}_light"] = torch.lerp(t[name], white, 0.26)
    t["headphones"] = torch.lerp(torch.tensor([0.16, 0.17, 0.22]).expand_as(skin), t["accent"], 0.12)
    t["shirt"] = torch.lerp(t["collar"], white, 0.5)
    t["beard"] = t["brow_colour"] * 1.12
    t["screen_edge"] = skin * 0.72
    t["nose"] = torch.lerp(torch.tensor([0.20, 0.15, 0.17]), pink * 0.85, t["nose_pink"][:, None])
    t["iris_dark"] = t["iris"] * 0.42
    t["iris_light"] = torch.lerp(t["iris"], white, 0.35)
    t["pupil"] = t["iris"] * 0.10 + 0.02
    t["lip_light"] = torch.lerp(t["lip"], white, 0.16)
    t["lip_shine"] = torch.lerp(t["lip"], white, 0.55)
    t["mouth_line"] = torch.lerp(t["lip"] * torch.tensor([0.42, 0.30, 0.32]), dark * 0.8, 0.25)
    t["mouth_inner"] = torch.tensor([0.25, 0.06, 0.09]).expand_as(skin).clone()
    t["mouth_inner"] = torch.lerp(t["mouth_inner"], t["screen"] * 0.45, robot)
    t["tongue"] = torch.lerp(torch.tensor([0.86, 0.38, 0.42]).expand_as(skin), t["led"] * 0.75, robot)
    t["teeth"] = torch.tensor([0.985, 0.97, 0.94]).expand_as(skin).clone()
    t["teeth_low"] = t["teeth"] * 0.88
    t["lash_colour"] = torch.lerp(torch.tensor([0.13, 0.09, 0.11]), t["brow_colour"] * 0.5, 0.3)
    t["lash_colour"] = torch.lerp(t["lash_colour"], t["patch"] * 2.6, patched)
    on_screen = (robot[:, 0] * t["has_screen"])[:, None]
    t["lash_colour"] = torch.lerp(t["lash_colour"], t["led"] * 0.6, on_screen)
    for name, value in t.items():
        if value.ndim == 2 and name != "glow_tint":  # the one colour that brightens
            t[name] = value.clamp(0, 1)


# what a probe can read off a frame
VISIBLE = (
    "skin", "hair", "cloth", "ground", "ground_low", "iris", "lip",
    "kind", "face_width", "face_low", "jaw", "mouth_width", "mouth_y", "mouth_height", "lip_lower", "eye_x", "eye_y",
    "eye_width", "eye_up", "iris_size", "brow_thick", "nose_y", "nose_width", "has_glasses", "has_hair", "hair_length",
)  # fmt: skip


def identity_vector(identities: Identities) -> Tensor:
    """The traits a probe can read off a frame: float32 [N, 40], raw units (RGB, pixels, 0 or 1), order of VISIBLE.

    Traits of something that a character lacks (the hair of a robot) are 0, because no frame shows them.
    """
    nose = identities["human_nose"] + identities["animal_nose"]
    there = {"hair": "has_hair", "hair_length": "has_hair", "brow_thick": "has_brow"}
    masks = {name: (identities[flag] > 0).float() for name, flag in there.items()} | {
        "nose_y": nose,
        "nose_width": nose,
    }
    columns = []
    for name in VISIBLE:
        column = identities[name]
        column = column[:, None] if column.ndim == 1 else column
        columns.append(column * masks[name][:, None] if name in masks else column)
    return torch.cat(columns, 1)


def select(identities: Identities, index: int | slice | Tensor | Sequence[int]) -> Identities:
    """Rows of the identities. A single integer keeps the row axis."""
    if isinstance(index, int):
        index = [index]
    return {name: value[index] for name, value in identities.items()}


def repeat_frames(identities: Identities, frames: int) -> Identities:
    """Each row `frames` times in a row: [N, ...] -> [N * frames, ...]."""
    return {name: value.repeat_interleave(frames, 0) for name, value in identities.items()}
