"""The solid parts of a person: skin, teeth, gums, tongue, eyes, and a pair of glasses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from characters.people.mesh import FRAME, GUM, LEFT_EYE, RIGHT_EYE, SKIN, TONGUE, TOOTH, Part, ball, halves, tube, unit
from characters.people.person import Person
from characters.people.template import load_template

# Widths and heights of teeth from the middle outwards, in units of 10 cm.
WIDTHS = (0.083, 0.066, 0.074, 0.068, 0.066, 0.09, 0.09)
HEIGHTS = (0.100, 0.088, 0.098, 0.084, 0.078, 0.072, 0.07)
LOWER_WIDTHS = (0.66, 0.88, 0.92, 1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Anatomy:
    """Parts at rest, and numbers about them.

    Attributes:
        skin: the fine body; fine: float32 [n, 3], its points again.
        parts: all parts, skin first.
        eyes: (centre [3], radius) of the person's left and right eye.
        pivot: [3], what the head turns about.
        lip_depth, lip_height: of the lips' middle.
        jaw: float32 [4, 3], how the lower teeth move at jawOpen = 1: point and 1 times this.
    """

    skin: Part
    parts: list[Part]
    eyes: tuple[tuple[np.ndarray, float], tuple[np.ndarray, float]]
    pivot: np.ndarray
    lip_depth: float
    lip_height: float
    jaw: np.ndarray

    @property
    def fine(self) -> np.ndarray:
        return self.skin.points


@cache
def skin_triangles() -> np.ndarray:
    return halves(load_template().body.quads)


@cache
def base_points() -> np.ndarray:
    """The base person's fine body: the places of textures."""
    template = load_template()
    return template.body.apply(template.control)


@cache
def head_share() -> np.ndarray:
    """How much each fine body vertex moves with the head: float32 [n]."""
    template = load_template()
    return template.body.apply(template.head)


def quad_normals(points: np.ndarray, quads: np.ndarray) -> np.ndarray:
    """Unit normals of the vertices of quads."""
    corners = points[quads]
    face = np.cross(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1])
    out = np.zeros_like(points)
    for axis in range(3):
        out[:, axis] = np.bincount(quads.ravel(), np.repeat(face[:, axis], 4), len(points))
    return unit(out).astype(np.float32)


@cache
def _jaw() -> np.ndarray:
    """The lower teeth's move, a linear map fitted to the unit jawOpen."""
    template = load_template()
    group = template.groups["lower-teeth"]
    moves = template.units.dense(len(template.control))[template.units.names.index("jawOpen"), group]
    known = np.concatenate((template.control[group], np.ones((len(group), 1), np.float32)), 1)
    return np.linalg.lstsq(known, moves, rcond=None)[0].astype(np.float32)


def build_anatomy(person: Person, random: np.random.Generator, glasses: bool) -> Anatomy:
    """Everything solid of a person; teeth and glasses are drawn from `random`."""
    template = load_template()
    control = person.control
    fine = template.body.apply(control)
    normals = quad_normals(fine, template.body.quads)
    skin = Part(SKIN, fine, normals, skin_triangles(), base_points(), template.masks[:, [0, 2, 3, 1]])
    lips = template.masks[:, 0] > 0.5
    depth, height = float(fine[lips, 2].max()) - 0.05, float(fine[lips, 1].mean())
    joints = {name: control[template.groups[name]].mean(0) for name in ("neck", "head")}
    eyes = []
    for side in "lr":
        points = control[template.groups[f"{side}-eye"]]
        eyes.append(((points.min(0) + points.max(0)) / 2, float(np.ptp(points, axis=0)[:2].mean() / 2)))
    tongue = template.tongue.apply(control)
    flesh = Part(
        TONGUE,
        tongue,
        quad_normals(tongue, template.tongue.quads),
        halves(template.tongue.quads),
        template.tongue.apply(template.control),
        np.zeros((len(tongue), 4), np.float32),
    )
    parts = [skin, *_teeth(control, height, random), flesh]
    sphere, triangles = ball(40, 28)
    for kind, (centre, radius) in zip((LEFT_EYE, RIGHT_EYE), eyes, strict=True):
        parts.append(
            Part(kind, centre + radius * sphere, sphere, triangles, sphere, np.zeros((len(sphere), 4), np.float32))
        )
    if glasses:
        parts.append(_glasses(fine, eyes, random))
    pivot = 0.35 * joints["neck"] + 0.65 * joints["head"]
    return Anatomy(skin, parts, (eyes[0], eyes[1]), pivot, depth, height, _jaw())


def _teeth(control: np.ndarray, lip_height: float, random: np.random.Generator) -> tuple[Part, Part]:
    """Teeth on two arches, and their gums. Sizes, gaps, crowding and wear differ from person to person."""
    groups = load_template().groups
    sphere, triangles = ball(14, 10)
    shape = np.sign(sphere) * np.abs(sphere) ** 0.55
    size, long = 1.05 * np.exp(0.05 * random.normal()), np.exp(0.09 * random.normal())
    gap = max(0.0, random.normal(-0.010, 0.008))
    crooked = abs(random.normal(0, 0.5))
    teeth, gums = [], []
    for lower in (0, 1):
        helper = control[groups["lower-teeth" if lower else "upper-teeth"]]
        front, back = helper[:, 2].max(), helper[:, 2].min()
        half = np.ptp(helper[:, 0]) / 2 * (0.865 if lower else 0.93)
        middle = helper[:, 0].mean()
        level = lip_height + (-0.115 if lower else 0.045)
        # The arch, by its length from the front.
        t = np.linspace(0, 1.5, 400)
        x = half * np.sin(t)
        z = front - 0.07 - 0.045 * lower - (back - front) * -1.15 * (1 - np.cos(t)) ** 1.25
        length = np.concatenate(([0], np.cumsum(np.hypot(np.diff(x), np.diff(z)))))
        widths = np.array(WIDTHS) * (np.array(LOWER_WIDTHS) if lower else 1) * size + gap
        ends = np.concatenate(([0], np.cumsum(widths)))
        up = 1 if lower else -1  # the direction from the gum to the edge
        for side in (-1, 1):
            for i, width in enumerate(widths - gap):
                at = ends[i] + widths[i] / 2
                here = np.array([np.interp(at, length, x), np.interp(at, length, z)])
                ahead = np.array([np.interp(at + 0.01, length, x), np.interp(at + 0.01, length, z)]) - here
                turn = random.normal(0, 0.10) * crooked
                along = unit(np.array([ahead[0], 0, ahead[1]]))
                out = np.array([-along[2], 0, along[0]])
                out = out if out[2] > 0 or out[0] > 0 else -out
                along, out = along * np.cos(turn) + out * np.sin(turn), out * np.cos(turn) - along * np.sin(turn)
                height = HEIGHTS[i] * long * (0.9 if lower else 1.05) * np.exp(0.03 * random.normal())
                edge = (shape[:, 1] * up + 1) / 2  # 0 at the gum, 1 at the edge
                narrow = 1 - 0.12 * (1 - edge)
                pointed = 0.12 * (i == 2) * np.abs(shape[:, 0]) * edge  # canines
                upward = shape[:, 1] * height * 0.62 - up * pointed * height
                points = along * (shape[:, :1] * width * 0.503 * narrow[:, None]) + out * (shape[:, 2:] * 0.045)
                points[:, 1] += upward
                normal = along * (sphere[:, :1] / width) + out * (sphere[:, 2:] / 0.06)
                normal[:, 1] += sphere[:, 1] / height
                mirror = np.array([side, 1, 1], np.float32)
                depth = random.normal(0, 0.010) * crooked
                base = np.array([middle + side * here[0], level + up * height * 0.10, here[1] + depth])
                base[1] += 0.008 * (i == 1 and not lower) + 0.003 * random.normal()
                traits = np.stack((edge, np.full_like(edge, lower), *[np.full_like(edge, random.random())] * 2), 1)
                faces = triangles if side > 0 else triangles[:, ::-1]
                teeth.append(Part(TOOTH, points * mirror + base, unit(normal) * mirror, faces, points, traits))
            stops = np.linspace(0, ends[-1], 26)
            path = np.stack(
                (
                    side * np.interp(stops, length, x) + middle,
                    np.full(26, level + (-0.08 if lower else 0.10)),
                    np.interp(stops, length, z) - (0.02 if lower else 0.005),
                ),
                1,
            )
            points, normals, faces = tube(path, 0.046 if lower else 0.06, False, 8)
            traits = np.zeros((len(points), 4), np.float32)
            traits[:, 1] = lower
            gums.append(Part(GUM, points, normals, faces, points, traits))
    return Part.join(teeth), Part.join(gums)


def _glasses(fine: np.ndarray, eyes: list[tuple[np.ndarray, float]], random: np.random.Generator) -> Part:
    """Rims, bridge and temples."""
    thick = random.choice([0.012, random.uniform(0.018, 0.032)])
    width, height, power = random.uniform(0.25, 0.31), random.uniform(0.17, 0.26), random.uniform(2, 4.5)
    front = eyes[0][0][2] + eyes[0][1] + 0.16
    base = base_points()
    temple = (np.abs(base[:, 1] - 7.3) < 0.1) & (np.abs(base[:, 2] - 0.7) < 0.2)
    reach = float(np.abs(fine[temple, 0]).max()) + 0.03
    angle = np.linspace(0, 2 * np.pi, 49)[:-1]
    cos, sin = np.cos(angle), np.sin(angle)
    pieces = []
    for side, (centre, _) in zip((1, -1), eyes, strict=True):
        x = side * max(abs(float(centre[0])), width + 0.07)
        rim = np.stack(
            (
                x + width * np.sign(cos) * np.abs(cos) ** (2 / power),
                centre[1] - 0.03 + height * np.sign(sin) * np.abs(sin) ** (2 / power),
                front - 0.12 * (np.abs(x + width * cos) / 0.6) ** 2,
            ),
            1,
        )
        pieces.append(tube(rim, thick, True))
        hinge = np.array([x + side * width, centre[1] + 0.05, front - 0.12 * ((abs(x) + width) / 0.6) ** 2])
        ear = [
            hinge,
            np.array([side * reach, centre[1] + 0.07, hinge[2] - 0.25]),
            np.array([side * (reach + 0.02), centre[1] + 0.06, 0.6]),
            np.array([side * (reach + 0.03), centre[1] + 0.02, 0.25]),
        ]
        pieces.append(tube(np.array(ear), thick * 0.9, False))
    inner = max(abs(float(eyes[0][0][0])), width + 0.07) - width
    arc = np.linspace(0, np.pi, 9)
    bridge = np.stack((inner * np.cos(arc), eyes[0][0][1] + 0.02 + 0.04 * np.sin(arc), front + 0.03 * np.sin(arc)), 1)
    pieces.append(tube(bridge, thick, False))
    return Part.join([Part(FRAME, p, n, f, p, np.zeros((len(p), 4), np.float32)) for p, n, f in pieces])
