"""Hair, brows, beards and lashes: strands that grow from the skin.

A strand starts on the scalp, follows the way of its style (off a parting, back, with gravity), is pushed out of head
and shoulders at every step, and is drawn to a lock of neighbours. All strands of a head grow at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from characters.people.anatomy import Anatomy, base_points, head_share, skin_triangles
from characters.people.look import Look
from characters.people.mesh import unit
from characters.people.person import Person
from characters.people.template import load_template

HAIR, BROW, BEARD, LASH = range(4)
SKULL = (0.0, 7.5, 0.35)  # the middle of the head
LOCKS = 45  # strands in a lock, on average


@dataclass(frozen=True)
class Style:
    """How hair grows.

    Attributes:
        length: units of 10 cm; steps: pieces of a strand; count: strands.
        lift: how far hair stands off the head; gravity: how soon it falls.
        curl: radius of curls; turns: of curls by length; lock: how far strands come together, 0 to 1.
        away, back, side: directions at the root: from the crown, backwards, off the parting; rise: off the skin.
    """

    length: float
    steps: int
    count: int
    lift: float
    gravity: float
    curl: float
    turns: float
    lock: float
    away: float
    back: float
    side: float
    rise: float


STYLES = {
    "buzz": Style(0.07, 2, 24000, 0, 0, 0, 0, 0, 0.8, 0, 0, 0.9),
    "short": Style(0.32, 6, 20000, 0.03, 0.5, 0.01, 6, 0.35, 0.9, -0.3, 0, 0.35),
    "part": Style(0.62, 9, 19000, 0.05, 0.8, 0.012, 5, 0.4, 0.35, 0.2, 1.0, 0.22),
    "quiff": Style(0.6, 10, 19000, 0.12, 0.5, 0.012, 5, 0.45, 0.0, 1.2, 0.35, 0.32),
    "curly": Style(0.6, 16, 15000, 0.12, 0.6, 0.045, 26, 0.7, 0.7, 0, 0, 0.5),
    "medium": Style(0.85, 12, 19000, 0.05, 2.6, 0.02, 4, 0.45, 0.55, 0.25, 0.75, 0.1),
    "sides": Style(0.22, 5, 13000, 0.05, 0.3, 0.01, 5, 0.3, 0.8, 0.4, 0, 0.5),
    "long": Style(3.3, 22, 19000, 0.045, 7.0, 0.015, 2, 0.4, 0.25, 0.35, 0.9, 0.03),
    "wavy": Style(3.1, 26, 19000, 0.07, 5.0, 0.07, 3.2, 0.6, 0.25, 0.35, 0.9, 0.08),
    "bob": Style(1.75, 16, 19000, 0.07, 6.0, 0.012, 2, 0.5, 0.25, 0.3, 0.9, 0.06),
    "afro": Style(0.62, 18, 15000, 0.3, 0, 0.04, 55, 0.55, 0.1, 0, 0, 1.3),
    "back": Style(0.95, 10, 19000, 0.06, 0.1, 0.008, 3, 0.55, 0.0, 1.4, 0.0, 0.22),
    "pixie": Style(0.55, 9, 19000, 0.06, 1.2, 0.012, 5, 0.45, 0.55, 0.1, 0.8, 0.2),
    "curls": Style(2.1, 32, 15000, 0.16, 3.5, 0.06, 14, 0.75, 0.25, 0.35, 0.8, 0.28),
}
PARTED = ("part", "long", "wavy", "bob", "pixie", "medium")
CROPPED = ("short", "part", "quiff", "curly")
HANGING = ("long", "wavy", "bob", "curls", "medium")


@dataclass(frozen=True)
class Strands:
    """Points of many strands, one after the other.

    Attributes:
        points: float32 [n, 4], x, y, z and how much the point moves with the head.
        traits: float32 [n, 4]: how far along the strand, a number of the strand, how open to light, kind.
        normals: float32 [n, 4]: the surface that a strand lies on; half width of the strand.
        bound: int32 [n], the mesh vertex that a point moves with; -1: none.
        pieces: int32 [m], first point of each piece.
    """

    points: np.ndarray
    traits: np.ndarray
    normals: np.ndarray
    bound: np.ndarray
    pieces: np.ndarray

    @staticmethod
    def join(parts: list[Strands]) -> Strands:
        offsets = np.cumsum([0] + [len(p.points) for p in parts])
        pieces = [p.pieces + offset for p, offset in zip(parts, offsets, strict=False)]
        return Strands(
            np.concatenate([p.points for p in parts]),
            np.concatenate([p.traits for p in parts]),
            np.concatenate([p.normals for p in parts]),
            np.concatenate([p.bound for p in parts]),
            np.concatenate(pieces).astype(np.int32),
        )


def _step(x: np.ndarray, low: float, high: float) -> np.ndarray:
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def _soft(x: Tensor, low: float, high: float) -> Tensor:
    t = ((x - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def scalp(recession: float, random: np.random.Generator) -> np.ndarray:
    """Where hair grows: float [fine vertices] in 0..1, thin at the hairline."""
    base, masks = base_points(), load_template().masks
    x, y = np.abs(base[:, 0]), base[:, 1]
    azimuth = np.degrees(np.arctan2(x, base[:, 2] - 0.30))
    widow = random.uniform(-0.02, 0.06)
    wave = np.sin(base[:, 0] * 9 + random.uniform(0, 6)) * 0.03 + np.sin(base[:, 0] * 23 + random.uniform(0, 6)) * 0.02
    r = recession
    heights = [
        7.93 + 0.8 * r - widow,
        7.97 + r,
        7.92 + 1.1 * r,
        7.74 + 0.8 * r,
        7.52 + 0.3 * r,
        7.25,
        7.02,
        7.3,
        6.95,
        6.65,
        6.48,
    ]
    line = np.interp(azimuth, [0, 18, 34, 50, 62, 74, 84, 90, 112, 135, 180], heights)
    grown = _step(y - line + wave, -0.08, 0.20) * (1 - _step(masks[:, 2], 0.2, 0.5)) * (head_share() > 0.3)
    ear = np.exp(-(((x - 0.78) / 0.16) ** 2) - ((y - 7.12) / 0.28) ** 2 - ((base[:, 2] - 0.38) / 0.16) ** 2)
    return grown * (1 - _step(ear, 0.25, 0.6)) * (y > 6.3)


class _Roots:
    """Draws places on the skin."""

    def __init__(self, anatomy: Anatomy, random: np.random.Generator) -> None:
        self.points, self.normals = anatomy.fine, anatomy.skin.normals
        self.triangles, self.random = skin_triangles(), random
        corners = self.points[self.triangles]
        self.area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)

    def draw(self, density: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Points, normals, places on the base person, and the nearest vertex of `count` roots."""
        share = np.cumsum(self.area * density[self.triangles].mean(1))
        chosen = np.searchsorted(share, self.random.random(count) * share[-1])
        corners = self.triangles[chosen.clip(0, len(share) - 1)]
        u, v = np.sqrt(self.random.random((1, count))), self.random.random((1, count))
        weights = np.concatenate((1 - u, u * (1 - v), u * v)).T
        mix = lambda values: (values[corners] * weights[..., None]).sum(1)  # noqa: E731
        nearest = corners[np.arange(count), weights.argmax(1)]
        return mix(self.points), unit(mix(self.normals)), mix(base_points()), nearest


class _Obstacle:
    """How far out head and shoulders reach, by direction, so that hair stays outside of them."""

    def __init__(self, anatomy: Anatomy, device: torch.device) -> None:
        base, masks, points = base_points(), load_template().masks, anatomy.fine
        head = (head_share() > 0.9) & (masks[:, 2] < 0.2) & (masks[:, 1] < 0.3) & (base[:, 1] > 6.1)
        self.centre = torch.tensor(SKULL, device=device)
        away = torch.from_numpy(points[head]).to(device) - self.centre
        self.skull = self._grid(*self._polar(away), away.norm(dim=1), (72, 36))
        low = (base[:, 1] < 6.98) & (base[:, 1] > 3.6)
        body = torch.from_numpy(points[low]).to(device)
        flat = body[:, [0, 2]] - torch.tensor([0.0, 0.1], device=device)
        self.neck = self._grid(
            torch.atan2(flat[:, 0], flat[:, 1]) / (2 * math.pi) + 0.5,
            (body[:, 1] - 3.5) / 3.6,
            flat.norm(dim=1),
            (48, 36),
        )
        torso = body[body[:, 1] < 6.2]
        x, y = (torso[:, 0] + 2) / 4, (torso[:, 1] - 3.5) / 3.6
        self.chest = self._grid(x, y, torso[:, 2] + 5, (40, 36)) - 5
        self.back = 5 - self._grid(x, y, 5 - torso[:, 2], (40, 36))

    @staticmethod
    def _polar(away: Tensor) -> tuple[Tensor, Tensor]:
        azimuth = torch.atan2(away[:, 0], away[:, 2]) / (2 * math.pi) + 0.5
        return azimuth, torch.atan2(away[:, 1], away[:, [0, 2]].norm(dim=1)) / math.pi + 0.5

    @staticmethod
    def _grid(x: Tensor, y: Tensor, value: Tensor, size: tuple[int, int]) -> Tensor:
        """Largest value by cell, blurred into cells without one: [1, 1, size]."""
        wide, high = size
        cell = (x * wide).long().clamp(0, wide - 1) * high + (y * high).long().clamp(0, high - 1)
        grid = torch.zeros(wide * high, device=x.device).scatter_reduce_(0, cell, value, "amax")
        grid = grid.view(1, 1, wide, high)
        known = (grid > 0).float()
        reach = torch.arange(-3, 4, device=x.device).float()
        kernel = torch.exp(-0.5 * (reach / 1.2) ** 2)
        kernel = (kernel[:, None] * kernel / kernel.sum() ** 2)[None, None]
        blurred = lambda g: F.conv2d(F.pad(F.pad(g, (0, 0, 3, 3), "circular"), (3, 3, 0, 0), "replicate"), kernel)  # noqa: E731
        share = blurred(known)
        return torch.where(share > 1e-3, blurred(grid) / share.clamp(min=1e-3), torch.full_like(grid, 0.9))

    @staticmethod
    def _read(grid: Tensor, x: Tensor, y: Tensor) -> Tensor:
        at = torch.stack((2 * y - 1, 2 * x - 1), -1)[None, None]
        return F.grid_sample(grid, at, padding_mode="border", align_corners=False)[0, 0, 0]

    def push(self, p: Tensor, lift: Tensor, cling: float, before: Tensor) -> Tensor:
        """Points [n, 3] outside of the obstacle; `before`: fall before the shoulders rather than behind."""
        away = p - self.centre
        length = away.norm(dim=1).clamp(min=1e-3)
        reach = self._read(self.skull, *self._polar(away)) + lift
        up = p[:, 1] > 7.2
        clung = 1 + cling * _soft(p[:, 1], 6.9, 7.6) * (reach / length - 1)
        k = torch.where(up, torch.where(length < reach, reach / length, clung), torch.ones_like(length))
        p = self.centre + away * k[:, None]
        flat = p[:, [0, 2]] - p.new_tensor([0.0, 0.1])
        length = flat.norm(dim=1).clamp(min=1e-3)
        round_neck = torch.atan2(flat[:, 0], flat[:, 1]) / (2 * math.pi) + 0.5
        reach = (self._read(self.neck, round_neck, (p[:, 1] - 3.5) / 3.6) + 0.05).clamp(max=0.78)
        k = torch.where((p[:, 1] < 7.0) & (length < reach), reach / length, torch.ones_like(length))
        x, z = flat[:, 0] * k, flat[:, 1] * k + 0.1
        at = ((x + 2) / 4, (p[:, 1] - 3.5) / 3.6)
        front, back = self._read(self.chest, *at) + 0.10, self._read(self.back, *at) - 0.10
        inside = (p[:, 1] < 5.95) & (z < front) & (z > back)
        z = torch.where(inside, torch.where(before, front, back), z)
        return torch.stack((x, p[:, 1], z), 1)


def grow(
    style: Style,
    roots: Tensor,
    normals: Tensor,
    obstacle: _Obstacle,
    parting: float,
    before: float,
    thin: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Strands from roots [n, 3]: points [n, steps + 1, 3]. `thin` [n]: 1 at the hairline, where hair is short."""
    device, count, steps = roots.device, len(roots), style.steps

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(*size, generator=generator, device=device)

    down = torch.tensor([0.0, -1.0, 0.0], device=device)
    crown = torch.stack((0.1 * normal(1)[0], roots.new_tensor(8.4), roots.new_tensor(-0.15)))
    off = (roots - crown + 0.10 * normal(count, 3)) * torch.tensor([1, 0.6, 1], device=device)
    sideways = torch.zeros_like(roots)
    sideways[:, 0] = torch.tanh((roots[:, 0] - parting) * 8)
    backwards = torch.tensor([0, 0.15, -1.0], device=device)
    flyaway = (torch.rand(count, generator=generator, device=device) < 0.04).float()
    way = style.away * F.normalize(off, dim=1) + style.back * backwards + style.side * sideways
    if style.gravity > 2:
        way = way + 0.8 * down * (1.1 - normals[:, 1:2]).clamp(0, 1)
    way = way - 0.9 * normals * (way * normals).sum(1, keepdim=True)
    jitter = 0.10 + 0.25 * flyaway[:, None]
    way = F.normalize(F.normalize(way, dim=1) + normals * style.rise + jitter * normal(count, 3), dim=1)
    length = style.length * uniform(0.72, 1.1, count) * (1 - 0.5 * thin)
    level, cling = uniform(0.15, 1, count) + 0.8 * flyaway, 0.6 if style.rise < 0.3 else 0.0
    falls_before = roots[:, 2] + 0.12 * normal(count) > before
    p, points = roots, [roots]
    for k in range(steps):
        way = F.normalize(way + down * style.gravity / steps, dim=1)
        p = p + way * (length / steps)[:, None]
        pushed = obstacle.push(p, 0.012 + style.lift * level * min(1, 3 * (k + 1) / steps), cling, falls_before)
        way = way + (0.5 * _soft(p[:, 1], 7.15, 7.5) * steps / length)[:, None] * (pushed - p)
        if style.gravity > 2:
            hanging = 1 - 0.45 * _soft(7.4 - p[:, 1], 0, 0.4)
            way = way * torch.stack((hanging, torch.ones_like(hanging), hanging), 1)
        way = F.normalize(way, dim=1)
        p = pushed
        points.append(p)
    strands = torch.stack(points, 1)
    if style.lock > 0:
        strands = _locks(style, strands, roots, flyaway, uniform, generator)
    wander = torch.cumsum(0.004 * normal(count, steps, 3) * (1 + 2 * flyaway[:, None, None]), 1)
    strands[:, 1:] += wander
    return strands


def _locks(
    style: Style,
    strands: Tensor,
    roots: Tensor,
    flyaway: Tensor,
    uniform: Callable[..., Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Strands of a lock curl alike and come together towards their tips."""
    count, points = strands.shape[:2]
    leaders = torch.randperm(count, generator=generator, device=roots.device)[: max(60, count // LOCKS)]
    lock = torch.cat([torch.cdist(part, roots[leaders]).argmin(1) for part in roots.split(4096)])
    along = torch.linspace(0, 1, points, device=roots.device)
    if style.curl > 0:
        start, turns = uniform(0, 6.28, len(leaders)), style.turns * uniform(0.7, 1.3, len(leaders))
        angle = along * turns[:, None] * style.length + start[:, None]
        curls = torch.stack((torch.cos(angle), 0.5 * torch.sin(0.9 * angle), torch.sin(angle)), -1)
        curls = style.curl * (4 * along).clamp(max=1)[:, None] * curls
        strands = strands + curls[lock] * uniform(0.7, 1.2, count)[:, None, None]
    share = style.lock * uniform(0.4, 1, count) * (1 - 0.8 * flyaway)
    share = share[:, None, None] * (along**1.3)[:, None]
    return strands * (1 - share) + strands[leaders][lock] * share


def _clear_face(strands: Tensor, roots: Tensor) -> Tensor:
    """Push what falls before the face to its sides."""
    x, y, z = strands.unbind(-1)
    knots = ((5.0, 0.55), (6.2, 0.62), (7.0, 0.66), (7.75, 0.45))  # height, half width kept clear
    limit = torch.full_like(x, knots[0][1])
    for (low, narrow), (high, wide) in pairwise(knots):
        limit = torch.where(y > low, narrow + (wide - narrow) * ((y - low) / (high - low)).clamp(0, 1), limit)
    side = torch.where(roots[:, :1] >= 0, 1.0, -1.0).expand_as(x)
    before = (y < 7.75) & (z > 0.5)
    x = torch.where(before & (x * side < 0), torch.zeros_like(x), x)
    need = before & (x.abs() < limit)
    z = torch.where(need, z.clamp(max=0.95), z)
    x = torch.where(need, side * (limit + 0.15 * x.abs()), x)
    out = torch.stack((x, y, z), -1)
    for _ in range(2):
        out[:, 1:-1] = (out[:, :-2] + 2 * out[:, 1:-1] + out[:, 2:]) / 4
    return out


def build_strands(
    person: Person, anatomy: Anatomy, look: Look, lashes: np.ndarray, lash_start: int, random: np.random.Generator,
    device: torch.device,
) -> tuple[Strands, np.ndarray, int]:  # fmt: skip
    """All strands of a person, hair first; the density of the scalp, [fine vertices]; how many pieces are hair."""
    roots = _Roots(anatomy, random)
    density = scalp(look.recession + (0.1 if look.style == "bald" else 0.0), random)
    parts = []
    if look.style in STYLES:
        parts.append(_head_hair(look.style, density, anatomy, roots, random, device))
    hair_pieces = sum(len(p.pieces) for p in parts)
    if look.beard not in ("none", "shadow"):
        parts.append(_beard(look.beard, roots, random))
    parts += [_lashes(lashes, look, lash_start, random), _brows(person, roots, random)]
    return Strands.join(parts), density * (0.5 if look.style == "bald" else 1.0), hair_pieces


def _head_hair(
    name: str, density: np.ndarray, anatomy: Anatomy, roots: _Roots, random: np.random.Generator, device: torch.device
) -> Strands:
    style, base = STYLES[name], base_points()
    style = replace(style, length=style.length * random.uniform(0.8, 1.2))
    grown = density
    if name == "sides":
        grown = grown * (1 - _step(base[:, 1] + 0.25 * (base[:, 2] - 0.3), 7.72, 7.92))
    if name in HANGING:
        grown = grown * _step(base[:, 1], 6.75, 6.95)
    points, normals, place, nearest = roots.draw(grown, style.count)
    generator = torch.Generator(device).manual_seed(int(random.integers(1 << 40)))
    start, up = (torch.from_numpy(x.astype(np.float32)).to(device) for x in (points, normals))
    thin = 1 - grown[nearest]
    if name in CROPPED:  # neck and temples are cut shorter than the top
        thin = np.maximum(thin, 1.6 * (1 - _step(place[:, 1] + 0.15 * place[:, 2], 7.05, 7.75)))
    thin = torch.from_numpy(thin.astype(np.float32)).to(device)
    parting = float(random.choice([-0.35, 0, 0.35])) if name in PARTED else 0.0
    before = float(random.choice([0.05, 0.35, 2.0]))
    strands = grow(style, start, up, _Obstacle(anatomy, device), parting, before, thin, generator)
    if style.length > 0.7 and name != "afro":
        strands = _clear_face(strands, start)
    if style.gravity > 2:
        x, y = strands[..., 0].abs(), strands[..., 1]
        wild = ((x > 1.06) & (y > 5.7) & (y < 7.3)).any(1)
        strands, thin = strands[~wild], thin[~wild]
    away = strands - torch.tensor(SKULL, device=device)
    length = away.norm(dim=2)
    azimuth, height = _Obstacle._polar(away.flatten(0, 1))
    outer = _Obstacle._grid(azimuth, height, length.flatten(), (40, 24))
    reach = _Obstacle._read(outer, azimuth, height).view_as(length)
    along = torch.linspace(0, 1, strands.shape[1], device=device).expand_as(length)
    depth = (reach - length) / torch.maximum(0.35 * (reach - 0.8), torch.full_like(reach, 0.28))
    light = (1 - depth).clamp(0.12, 1) * (0.5 + 0.5 * (3 * along).clamp(max=1))
    weight = _soft(strands[..., 1], 5.6, 6.6)
    width = (0.0030 if name == "buzz" else 0.0048) * torch.ones_like(length)
    return _pack(
        HAIR, strands.cpu().numpy(), weight.cpu().numpy(), F.normalize(away, dim=2).cpu().numpy(),
        light.cpu().numpy(), width.cpu().numpy(), np.full(len(strands), -1), random,
    )  # fmt: skip


def _pack(
    kind: int, strands: np.ndarray, weight: np.ndarray, normals: np.ndarray, light: np.ndarray, width: np.ndarray,
    bound: np.ndarray, random: np.random.Generator,
) -> Strands:  # fmt: skip
    """Strands [n, k, 3] with values [n, k] (bound: [n] or [n, k]) as `Strands`."""
    count, points = strands.shape[:2]
    full = (count, points)
    along = np.broadcast_to(np.linspace(0, 1, points), full)
    number = np.broadcast_to(random.random((count, 1)), full)
    traits = np.stack((along, number, np.broadcast_to(light, full), np.full(full, kind)), -1)
    first = np.arange(count)[:, None] * points + np.arange(points - 1)
    bound = np.broadcast_to(bound if bound.ndim == 2 else bound[:, None], full)
    at = np.concatenate((strands, np.broadcast_to(weight, full)[..., None]), -1)
    facing = np.concatenate((np.broadcast_to(normals, (*full, 3)), np.broadcast_to(width, full)[..., None]), -1)
    points_, traits_, normals_ = (rows.astype(np.float32).reshape(-1, 4) for rows in (at, traits, facing))
    pieces = first.ravel().astype(np.int32)
    return Strands(points_, traits_, normals_, bound.astype(np.int32).ravel(), pieces)


def _brows(person: Person, roots: _Roots, random: np.random.Generator) -> Strands:
    base = base_points()
    x, y = np.abs(base[:, 0]), base[:, 1]
    along = np.clip((x - 0.09) / 0.46, 0, 1)
    line = 7.465 + 0.66 * random.uniform(0.03, 0.09) * np.sin(along * 2.3) - 0.015 * along
    thick = (0.026 if person.is_male else 0.018) * random.uniform(0.7, 1.25) * (1.05 - 0.75 * along)
    density = (
        np.exp(-(((y - line) / thick) ** 2)) * _step(x, 0.06, 0.12) * (1 - _step(x, 0.50, 0.58)) * (base[:, 2] > 0.8)
    )
    count = int((1700 if person.is_male else 1100) * random.uniform(0.5, 1.1))
    points, normals, place, nearest = roots.draw(density + 1e-9, count)
    u = np.clip((np.abs(place[:, 0]) - 0.1) / 0.4, 0, 1)
    lean = place[:, 1] - np.interp(u, [0, 0.5, 1], [7.46, 7.52, 7.48])
    way = np.stack(
        (np.sign(place[:, 0]) * (0.25 + 0.9 * u), 0.75 - u + random.normal(0, 0.15, count) - 6 * lean, 0 * u), 1
    )
    way = unit(way - normals * (way * normals).sum(1, keepdims=True)) + 0.25 * normals
    t = np.linspace(0, 1, 4)[None, :, None]
    length = (0.075 if person.is_male else 0.062) * random.uniform(0.6, 1.1, (count, 1, 1))
    strands = points[:, None] + unit(way)[:, None] * t * length - normals[:, None] * (0.012 * t**2 - 0.003)
    width = 0.0015 * (1 - 0.6 * t[..., 0])
    return _pack(BROW, strands, np.ones(1), normals[:, None], np.full((1, 1), 0.8), width, nearest, random)


@cache
def _from_lips() -> np.ndarray:
    """Distance of each fine vertex from the red of the lips, on the base person."""
    base, lips = torch.from_numpy(base_points()), load_template().masks[:, 0] > 0.4
    near = torch.cdist(base, base[torch.from_numpy(lips)])
    return near.min(1).values.numpy()


def _beard(kind: str, roots: _Roots, random: np.random.Generator) -> Strands:
    base, masks = base_points(), load_template().masks
    x, y, z = np.abs(base[:, 0]), base[:, 1], base[:, 2]
    side = _step(x, 0.45, 0.75)
    density = (
        _step(7.02 - y + 0.35 * side, -0.02, 0.22) * _step(z, 0.32, 0.6) * _step(y, 6.08, 6.25) * (masks[:, 2] < 0.1)
    )
    cheek = np.exp(-(((x - 0.40) / 0.20) ** 2) - ((y - 6.80) / 0.20) ** 2)
    density = density * np.clip(1 - 1.3 * cheek, 0, 1) * (1 - _step(masks[:, 0], 0.1, 0.4)) * (masks[:, 1] < 0.2)
    density = density * (y < 6.87 + 0.4 * side)
    density = density * (1 - 0.8 * np.exp(-((x / 0.2) ** 2) - ((y - 6.46) / 0.045) ** 2))  # below the lower lip
    density = density * (1 - 0.7 * np.exp(-((x / 0.04) ** 2) - ((y - 6.8) / 0.1) ** 2))  # under the nose
    density = density * _step(_from_lips(), 0.015, 0.06)
    middle = np.exp(-((x / 0.30) ** 4))
    if kind in ("goatee", "moustache"):
        density = density * middle * ((y > 6.64) if kind == "moustache" else 1)
    length, count = {
        "stubble": (0.020, 9000), "short": (0.065, 11000), "full": (0.22, 14000), "goatee": (0.10, 5500),
        "moustache": (0.075, 3500),
    }[kind]  # fmt: skip
    points, normals, place, nearest = roots.draw(density + 1e-9, count)
    upper = place[:, 1] > 6.66
    way = np.tile([0, -1.0, 0.1], (count, 1))
    way[:, 0] = np.sign(place[:, 0]) * 0.9 * upper * np.minimum(1, np.abs(place[:, 0]) * 6)
    way = (
        unit(way - normals * (way * normals).sum(1, keepdims=True)) + 0.5 * normals + random.normal(0, 0.25, (count, 3))
    )
    t = np.linspace(0, 1, 5)[None, :, None]
    long = length * np.where(upper, 0.38, 1.0)[:, None, None] * random.uniform(0.6, 1.1, (count, 1, 1))
    strands = points[:, None] + unit(way)[:, None] * t * long + np.array([0, -0.35, 0]) * long * t**2
    strands = strands + normals[:, None] * 0.004
    facing = unit(normals + np.array([0, 0.1, 0.2]))[:, None]
    light = 0.55 + 0.45 * t[..., 0]
    return _pack(BEARD, strands, np.ones(1), facing, light, 0.0018 * (1 - 0.5 * t[..., 0]), nearest, random)


def lash_points() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where lashes stand between the columns of the template's strips.

    Returns:
        Columns [n] and share of the next column [n], as a pair of control vertices for each of five points; and whether
        a lash belongs to an upper lid: int32 [n, 5, 2], float32 [n], bool [n].
    """
    template, random = load_template(), np.random.default_rng(5)
    pairs, shares, upper = [], [], []
    for strip in range(4):
        columns = template.lashes[template.lash_strip == strip]
        is_upper = strip % 2 == 1
        count = 62 if is_upper else 30
        at = np.sort(random.uniform(0, len(columns) - 1.001, count))
        first = at.astype(int)
        pairs.append(np.stack((columns[first], columns[first + 1]), -1))
        shares.append(at - first)
        upper.append(np.full(count, is_upper))
    return np.concatenate(pairs).astype(np.int32), np.concatenate(shares).astype(np.float32), np.concatenate(upper)


def _lashes(points: np.ndarray, look: Look, lash_start: int, random: np.random.Generator) -> Strands:
    """Strands over the lash points [n, 3], which are vertices of the mesh from `lash_start` on."""
    _, _, upper = lash_points()
    strands = points.reshape(len(upper), 5, 3)
    bound = lash_start + np.arange(strands.shape[0] * 5).reshape(-1, 5)
    makeup = look.values["skin_b"][2]
    thick = np.where(upper, 0.0013 + 0.0016 * makeup, 0.0006 + 0.0005 * makeup)[:, None]
    width = thick * (1 - 0.8 * np.linspace(0, 1, 5))
    return _pack(LASH, strands, np.ones(1), np.array([0, 0, 1.0]), np.full((1, 1), 0.4), width, bound, random)
