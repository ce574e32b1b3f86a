"""A person as the arrays that the graphics card draws: vertices, moves, triangles and strands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from characters.people.anatomy import Anatomy, build_anatomy, head_share
from characters.people.hair import Strands, build_strands, lash_points
from characters.people.look import Look, sample_look
from characters.people.mesh import LASH, SKIN
from characters.people.person import Person, sample_person
from characters.people.template import load_template

NEIGHBOURS = 8  # most quads around a vertex


@dataclass(frozen=True)
class Moves:
    """How the first vertices of every figure move with the units: skin, tongue, lashes.

    Attributes:
        offsets: uint32 [vertices + 1]; entries: float32 [n, 4], move and unit; entries of vertex v lie between
            offsets[v] and offsets[v + 1].
        around: int32 [skin and tongue vertices, NEIGHBOURS], quads at a vertex, -1 for none.
        quads: int32 [q, 4].
    """

    offsets: np.ndarray
    entries: np.ndarray
    around: np.ndarray
    quads: np.ndarray

    @property
    def vertices(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Figure:
    """Arrays of one person with one haircut.

    Attributes:
        rest: float32 [n, 4], place at rest and share of the head's motion; still: float32 [n, 4], normals at rest;
        place: float32 [n, 4], where textures are looked up, and the kind; traits: float32 [n, 4], see `Part`;
        shade: float32 [n, 4], scalp and three zeros; triangles: int32 [m, 3].
        strands: hair, beard, lashes, brows; hair_pieces: pieces of the hair, which come first.
        anatomy: numbers about the head.
    """

    person: Person
    anatomy: Anatomy
    rest: np.ndarray
    still: np.ndarray
    place: np.ndarray
    traits: np.ndarray
    shade: np.ndarray
    triangles: np.ndarray
    strands: Strands
    hair_pieces: int


@cache
def lash_pairs() -> tuple[np.ndarray, np.ndarray]:
    """Control vertices of lash points and the share of the second: int32 [n, 2], float32 [n, 1]."""
    pairs, shares, _ = lash_points()
    return pairs.reshape(-1, 2), np.repeat(shares, pairs.shape[1])[:, None]


@cache
def moves() -> Moves:
    template = load_template()
    units = template.units.dense(len(template.control))
    tongue = np.zeros_like(units)
    for name in ("jawOpen", "tongueOut"):
        tongue[template.units.names.index(name)] = units[template.units.names.index(name)]
    units[template.units.names.index("tongueOut")] = 0
    pairs, shares = lash_pairs()
    offsets, entries = [0], []
    lashes = [u[pairs[:, 0]] * (1 - shares) + u[pairs[:, 1]] * shares for u in units]
    dense = np.concatenate(
        (
            np.stack([template.body.apply(u) for u in units]),
            np.stack([template.tongue.apply(u) for u in tongue]),
            np.stack(lashes),
        ),
        1,
    )
    for v in range(dense.shape[1]):
        here = np.flatnonzero(np.abs(dense[:, v]).max(1) > 1e-5)
        entries.append(np.concatenate((dense[here, v], here[:, None]), 1))
        offsets.append(offsets[-1] + len(here))
    count = template.body.count
    quads = np.concatenate((template.body.quads, template.tongue.quads + count)).astype(np.int32)
    around = np.full((count + template.tongue.count, NEIGHBOURS), -1, np.int32)
    filled = np.zeros(len(around), int)
    for face, corners in enumerate(quads):
        for v in corners:
            if filled[v] < NEIGHBOURS:
                around[v, filled[v]] = face
                filled[v] += 1
    return Moves(np.array(offsets, np.uint32), np.concatenate(entries).astype(np.float32), around, quads)


def build_figure(person: Person, look: Look, device: torch.device) -> Figure:
    """Everything about a person that stays from clip to clip: shape, teeth, hair, glasses."""
    random = np.random.default_rng((33, person.seed))
    anatomy = build_anatomy(person, random, look.glasses)
    skin, *others = anatomy.parts
    tongue = next(p for p in others if len(p.points) == load_template().tongue.count)
    others = [p for p in others if p is not tongue]
    pairs, shares = lash_pairs()
    lashes = person.control[pairs[:, 0]] * (1 - shares) + person.control[pairs[:, 1]] * shares
    rows = [(p.kind, p.points, p.normals, p.place, p.traits) for p in (skin, tongue)]
    rows.append((LASH, lashes, np.zeros_like(lashes), lashes, np.zeros((len(lashes), 4), np.float32)))
    rows += [(p.kind, p.points, p.normals, p.place, p.traits) for p in others]
    triangles, start = [], 0
    parts = [skin, tongue, None, *others]
    for part, row in zip(parts, rows, strict=True):
        if part is not None:
            triangles.append(part.triangles + start)
        start += len(row[1])

    def column(of: int, last: list[np.ndarray]) -> np.ndarray:
        body = [np.concatenate((r[of], extra[:, None]), 1) for r, extra in zip(rows, last, strict=True)]
        return np.concatenate(body).astype(np.float32)

    ones = [head_share() if r[0] == SKIN else np.ones(len(r[1])) for r in rows]
    kinds = [np.full(len(r[1]), r[0]) for r in rows]
    zeros = [np.zeros(len(r[1])) for r in rows]
    lash_start = len(skin.points) + len(tongue.points)
    strands, scalp, hair_pieces = build_strands(person, anatomy, look, lashes, lash_start, random, device)
    shade = np.zeros((start, 4), np.float32)
    shade[: len(scalp), 0] = scalp
    traits = np.concatenate([r[4] for r in rows]).astype(np.float32)
    return Figure(
        person, anatomy, column(1, ones), column(2, zeros), column(3, kinds), traits, shade,
        np.concatenate(triangles).astype(np.int32), strands, hair_pieces,
    )  # fmt: skip


def make_figure(seed: int, device: torch.device) -> tuple[Figure, Look]:
    """The person of a seed with a first look."""
    person = sample_person(seed)
    look = sample_look(person, 0)
    return build_figure(person, look, device), look
