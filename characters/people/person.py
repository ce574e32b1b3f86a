"""Who a person is: the shape of the head, drawn so that its parts fit each other.

Independent draws of a hundred shape targets give heads that are all a little odd and alike. Here a few hidden factors
(how long, broad, heavy, sharp a face is) move many targets together, sexes differ as they do in people, and what is
left is drawn for each target alone. Then the face is measured, and drawn again if people do not look like that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from characters.people.template import Template, load_template

# Opposite ends of a target; the first of a pair is the negative one.
PAIRS = (
    ("decr", "incr"), ("down", "up"), ("in", "out"), ("backward", "forward"), ("concave", "convex"),
    ("compress", "uncompress"),
)  # fmt: skip
# Standard deviation of what each target is moved on its own.
SPREAD = {
    "mouth": 0.20, "nose": 0.24, "eyes": 0.21, "head": 0.14, "chin": 0.18, "cheek": 0.22, "forehead": 0.20,
    "eyebrows": 0.30, "ears": 0.30, "neck": 0.16,
}  # fmt: skip
LARGEST = 0.75
# Hidden factors, each one standard deviation: what they move.
FACTORS: dict[str, dict[str, float]] = {
    "long": {
        "head/head-scale-vert": 0.30, "chin/chin-height": 0.20, "nose/nose-scale-vert": 0.25,
        "forehead/forehead-scale-vert": 0.15, "head/head-scale-horiz": -0.15, "mouth/mouth-trans": -0.08,
    },
    "broad": {
        "head/head-scale-horiz": 0.25, "cheek/cheek-bones": 0.20, "chin/chin-width": 0.22,
        "nose/nose-scale-horiz": 0.22,
        "mouth/mouth-scale-horiz": 0.20, "eyes/eye-trans": 0.12, "forehead/forehead-temple": 0.15,
    },
    "heavy": {
        "head/head-fat": 0.28, "cheek/cheek-volume": 0.35, "neck/neck-double": 0.30, "eyes/eye-bag": 0.15,
        "nose/nose-volume": 0.18, "chin/chin-jaw-drop": 0.12,
    },
    "sharp": {
        "nose/nose-hump": 0.25, "nose/nose-point-width": -0.25, "chin/chin-prominent": 0.22, "cheek/cheek-inner": -0.22,
        "nose/nose-scale-depth": 0.25, "nose/nose-width2": -0.2, "head/head-fat": -0.15,
    },
    "full lips": {
        "mouth/mouth-upperlip-volume": 0.30, "mouth/mouth-lowerlip-volume": 0.30, "mouth/mouth-upperlip-height": 0.30,
        "mouth/mouth-lowerlip-height": 0.25, "mouth/mouth-scale-vert": 0.20, "mouth/mouth-cupidsbow": 0.15,
    },
    "open eyes": {
        "eyes/eye-height1": 0.18, "eyes/eye-height2": 0.20, "eyes/eye-height3": 0.18, "eyes/eye-scale": 0.18,
        "eyes/eye-eyefold": 0.2, "eyebrows/eyebrows-trans": 0.2,
    },
    "slant": {"eyes/eye-corner1": 0.25, "eyes/eye-corner2": 0.25, "eyebrows/eyebrows-angle": 0.3},
    "upturned": {
        "nose/nose-point": 0.35, "nose/nose-base": 0.25, "nose/nose-nostrils-angle": 0.3, "nose/nose-curve": -0.3,
    },
    "wide nose": {
        "nose/nose-nostrils-width": 0.30, "nose/nose-width3": 0.28, "nose/nose-flaring": 0.25,
        "nose/nose-point-width": 0.2, "nose/nose-width1": 0.15,
    },
}  # fmt: skip
# How women (+1) and men (-1) differ on average, beyond the macro targets.
FEMALE = {
    "chin/chin-width": -0.24, "chin/chin-bones": -0.30, "chin/chin-jaw-drop": -0.16, "chin/chin-prominent": -0.10,
    "chin/chin-height": -0.10, "mouth/mouth-upperlip-volume": 0.15, "mouth/mouth-lowerlip-volume": 0.15,
    "mouth/mouth-scale-vert": 0.10, "eyebrows/eyebrows-trans": 0.22, "eyebrows/eyebrows-angle": 0.12,
    "eyes/eye-scale": 0.16, "eyes/eye-height2": 0.10, "nose/nose-scale-horiz": -0.12, "nose/nose-hump": -0.14,
    "nose/nose-point": 0.12, "neck/neck-scale-horiz": -0.18, "forehead/forehead-nubian": -0.10,
    "head/head-fat": 0.03, "cheek/cheek-bones": 0.10,
}  # fmt: skip
OUTLINES = ("oval", "round", "square", "rectangular", "triangular", "invertedtriangular", "diamond")
# Left out: moves of a whole part that the camera undoes, and targets that break the mesh.
LEFT_OUT = (
    "head/head-trans", "neck/neck-trans", "head/head-age", "head/head-angle", "head/head-scale-depth",
    "ears/ear-shape", "nose/nose-trans-in", "mouth/mouth-trans-in",
)  # fmt: skip


@dataclass(frozen=True)
class Person:
    """A person, before light and clothes.

    Attributes:
        seed: everything else follows from it.
        age: years; male: 0 to 1; origin: [3], shares African, Asian and European; melanin: 0 to 1.
        control: float32 [control vertices, 3], the shaped mesh with the arms down.
    """

    seed: int
    age: float
    male: float
    origin: np.ndarray
    melanin: float
    control: np.ndarray

    @property
    def old(self) -> float:
        """0 at 25, 1 at 80."""
        return float(np.clip((self.age - 25) / 55, 0, 1))

    @property
    def is_male(self) -> bool:
        return self.male > 0.5


@cache
def _knobs() -> dict[str, tuple[list[str], list[str]]]:
    """Knob -> targets of its negative and positive side; pairs of left and right are one knob."""
    knobs: dict[str, tuple[list[str], list[str]]] = {}
    for name in load_template().targets.names:
        category, rest = name.split("/")
        for low, high in PAIRS:
            for end, positive in ((low, False), (high, True)):
                if rest.endswith("-" + end) and category != "macrodetails":
                    stem = rest.removesuffix("-" + end)
                    if stem[:2] in ("l-", "r-"):
                        stem = stem[2:]
                    knob = f"{category}/{stem}" + (
                        "-in"
                        if (low, high) == ("in", "out") and "trans" in stem and category in ("mouth", "nose")
                        else ""
                    )
                    knobs.setdefault(knob, ([], []))[positive].append(name)
    return {k: v for k, v in knobs.items() if v[0] and v[1] and not k.startswith(LEFT_OUT)}


def _macro(age: float, male: float, origin: np.ndarray, weight: float, muscle: float) -> dict[str, float]:
    """Weights of MakeHuman's targets of age, sex, origin, weight and muscle."""
    old = float(np.clip((age - 25) / 65, 0, 1))
    sexes, ages = {"male": male, "female": 1 - male}, {"young": 1 - old, "old": old}

    def levels(x: float, of: str) -> dict[str, float]:
        return {f"min{of}": max(0, 1 - 2 * x), f"average{of}": 1 - abs(2 * x - 1), f"max{of}": max(0, 2 * x - 1)}

    weights: dict[str, float] = {}
    for sex, s in sexes.items():
        for years, a in ages.items():
            for race, share in zip(("african", "asian", "caucasian"), origin, strict=True):
                weights[f"macrodetails/{race}-{sex}-{years}"] = s * a * float(share)
            for m, by_muscle in levels(muscle, "muscle").items():
                for w, by_weight in levels(weight, "weight").items():
                    weights[f"macrodetails/universal-{sex}-{years}-{m}-{w}"] = s * a * by_muscle * by_weight
    return weights


def _shape(random: np.random.Generator, age: float, male: float, origin: np.ndarray) -> dict[str, float]:
    """Weights of targets."""
    heavy = random.normal()
    weight = float(np.clip(0.52 + 0.13 * heavy, 0.15, 0.95))
    weights = _macro(age, male, origin, weight, float(np.clip(random.normal(0.5, 0.12), 0.2, 0.9)))
    knobs = dict.fromkeys(_knobs(), 0.0)
    for knob in knobs:
        knobs[knob] = random.normal() * SPREAD[knob.split("/")[0]]
    for factor, moved in FACTORS.items():
        amount = 0.4 * random.normal() + 0.6 * heavy if factor == "heavy" else random.normal()
        for knob, by in moved.items():
            if knob in knobs:
                knobs[knob] += amount * by
    for knob, by in FEMALE.items():
        if knob in knobs:
            knobs[knob] += by * (1 - 2 * male)
    for knob, amount in knobs.items():
        amount = float(np.clip(amount, -LARGEST, LARGEST))
        for name in _knobs()[knob][amount > 0]:
            # Faces are not quite symmetrical.
            uneven = 0.05 * random.normal() if name.split("/")[1][:2] in ("l-", "r-") else 0.0
            weights[name] = max(0.0, abs(amount) + uneven)
    outline = OUTLINES[random.integers(len(OUTLINES))]
    weights[f"head/head-{outline}"] = random.uniform(0, 0.45)
    weights["head/head-age-incr"] = max(0.0, (age - 38) / 65) * 0.8
    return weights


@cache
def _targets() -> np.ndarray:
    template = load_template()
    return template.targets.dense(len(template.control)).reshape(len(template.targets.names), -1)


def _arms_down(control: np.ndarray, template: Template) -> np.ndarray:
    for arm, joint, side in ((template.left_arm, "l-shoulder", 1), (template.right_arm, "r-shoulder", -1)):
        centre = control[template.groups[joint]].mean(0)
        angle = -side * 0.55
        cos, sin = np.cos(angle), np.sin(angle)
        turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]], np.float32)
        weight = arm[:, None]
        control = control * (1 - weight) + ((control - centre) @ turn.T + centre) * weight
    return control


EYES_AT = (7.28, 1.25)  # height and depth of the middle between the eyes, for everybody


def measure(control: np.ndarray) -> dict[str, float]:
    """Proportions of a face, from points of the mesh.

    Returns:
        eyes: distance of the eyes over the width of the face; mouth: width of the mouth over the distance of the eyes;
        nose: width of the nose over the distance of the eyes; lower: mouth to chin over eyes to mouth; lips: height of
        the red over the width of the mouth.
    """
    template = load_template()
    fine = template.body.apply(control)
    at = _landmarks()
    left, right = (control[template.groups[f"{s}-eye"]].mean(0) for s in "lr")
    eyes = float(np.linalg.norm(left - right))
    mouth = float(np.ptp(fine[at["mouth"], 0]))
    middle = float(fine[at["mouth"], 1].mean())
    return {
        "eyes": eyes / float(np.ptp(fine[at["face"], 0])),
        "mouth": mouth / eyes,
        "nose": float(np.ptp(control[at["nose"], 0])) / eyes,
        "lower": (middle - float(fine[at["chin"], 1].min())) / (EYES_AT[0] - middle),
        "lips": float(np.ptp(fine[at["red"], 1])) / mouth,
    }


# What people look like (after Farkas, 1994, a little wider): a face outside is drawn again.
NORMAL = {
    "eyes": (0.38, 0.48),
    "mouth": (0.70, 1.04),
    "nose": (0.42, 0.90),
    "lower": (0.55, 0.95),
    "lips": (0.20, 0.58),
}


@cache
def _landmarks() -> dict[str, np.ndarray]:
    """Fine body vertices by what they are, found on the base person; the nose's wings are control vertices."""
    template = load_template()
    fine = template.body.apply(template.control)
    x, y, z = np.abs(fine[:, 0]), fine[:, 1], fine[:, 2]
    lips = template.masks[:, 0] > 0.5
    front = template.masks[:, 1] < 0.5
    flare = template.targets.names.index("nose/nose-nostrils-width-incr")
    moved = template.targets.which == flare
    sideways = np.abs(template.targets.move[moved, 0])
    wings = template.targets.vertex[moved][sideways > 0.7 * sideways.max()]
    return {
        "mouth": np.flatnonzero(lips & front),
        "red": np.flatnonzero(lips & front & (x < 0.15)),
        "face": np.flatnonzero((np.abs(y - 7.1) < 0.12) & (z > 0.55) & (template.masks[:, 2] < 0.2)),
        "nose": wings,
        "chin": np.flatnonzero((x < 0.2) & (y > 5.9) & (y < 6.4) & (z > 0.9)),
    }


def sample_person(seed: int) -> Person:
    """The person of a seed."""
    random = np.random.default_rng((18, seed))
    template = load_template()
    age = random.uniform(18, 80) if random.random() < 0.7 else random.uniform(18, 45)
    male = float(np.clip((0.06 if random.random() < 0.5 else 0.94) + 0.08 * random.normal(), 0, 1))
    origin = random.dirichlet([0.45, 0.45, 0.6])
    melanin = float(np.clip(origin @ [0.80, 0.32, 0.17] + 0.09 * random.normal(), 0.02, 0.97))
    control = template.control
    for _ in range(20):
        weights = _shape(random, age, male, origin)
        column = np.array([weights.get(name, 0.0) for name in template.targets.names], np.float32)
        control = template.control + (column @ _targets()).reshape(-1, 3)
        control = _arms_down(control, template)
        left, right = (control[template.groups[f"{s}-eye"]].mean(0) for s in "lr")
        middle = (left + right) / 2
        control = control - np.array([0, middle[1] - EYES_AT[0], middle[2] - EYES_AT[1]], np.float32)
        found = measure(control)
        if all(low <= found[name] <= high for name, (low, high) in NORMAL.items()):
            break
    return Person(seed, age, male, origin, melanin, control.astype(np.float32))
