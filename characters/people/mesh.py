"""Small shapes: balls, tubes, and parts put together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SKIN, TOOTH, GUM, TONGUE, LEFT_EYE, RIGHT_EYE, FRAME, LASH = range(8)  # what a vertex belongs to


@dataclass(frozen=True)
class Part:
    """Vertices of one kind that move alike.

    Attributes:
        kind: SKIN to LASH.
        points: float32 [n, 3]; normals: float32 [n, 3].
        triangles: int32 [m, 3], over the part's own vertices.
        place: float32 [n, 3], where textures are looked up: the base person's skin, or the part's own coordinates.
        traits: float32 [n, 4], by kind: lips, ears, lids and inside of the mouth of skin; of teeth, how far from the
            gum and whether in the lower jaw.
    """

    kind: int
    points: np.ndarray
    normals: np.ndarray
    triangles: np.ndarray
    place: np.ndarray
    traits: np.ndarray

    @staticmethod
    def join(parts: list[Part]) -> Part:
        """Parts of one kind as one."""
        offsets = np.cumsum([0] + [len(p.points) for p in parts])
        triangles = [p.triangles + offset for p, offset in zip(parts, offsets, strict=False)]
        columns = [np.concatenate([getattr(p, n) for p in parts]) for n in ("points", "normals", "place", "traits")]
        return Part(parts[0].kind, columns[0], columns[1], np.concatenate(triangles), columns[2], columns[3])


def unit(v: np.ndarray) -> np.ndarray:
    """Vectors along the last axis, of length 1."""
    return v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), 1e-9)


def halves(quads: np.ndarray) -> np.ndarray:
    """[n, 4] -> triangles [2 n, 3]."""
    return np.concatenate((quads[:, [0, 1, 2]], quads[:, [0, 2, 3]])).astype(np.int32)


def ball(around: int, along: int) -> tuple[np.ndarray, np.ndarray]:
    """A unit sphere whose pole looks at the viewer: points [n, 3] and triangles [m, 3]."""
    polar, azimuth = np.meshgrid(np.linspace(0, np.pi, along), np.linspace(0, 2 * np.pi, around + 1), indexing="ij")
    points = np.stack((np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar)), -1)
    first = np.arange(along - 1)[:, None] * (around + 1) + np.arange(around)
    quads = np.stack((first, first + 1, first + around + 2, first + around + 1), -1).reshape(-1, 4)
    return points.reshape(-1, 3).astype(np.float32), halves(quads)


def tube(path: np.ndarray, radius: float, closed: bool, sides: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A tube about `path` [k, 3]: points, normals, triangles."""
    count = len(path)
    along = np.roll(path, -1, 0) - np.roll(path, 1, 0) if closed else np.gradient(path, axis=0)
    along = unit(along)
    across = unit(np.cross(along, [0, 0, 1.0]) + 1e-6)
    over = np.cross(along, across)
    angle = np.arange(sides) / sides * 2 * np.pi
    normals = across[:, None] * np.cos(angle)[:, None] + over[:, None] * np.sin(angle)[:, None]
    points = path[:, None] + radius * normals
    i, j = np.arange(count if closed else count - 1)[:, None], np.arange(sides)
    k = (i + 1) % count
    quads = np.stack((i * sides + j, k * sides + j, k * sides + (j + 1) % sides, i * sides + (j + 1) % sides), -1)
    return points.reshape(-1, 3), normals.reshape(-1, 3), halves(quads.reshape(-1, 4))
