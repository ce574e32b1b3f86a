"""How a person looks in one clip: skin, colours, clothes, light and camera. One set of numbers, read by the shaders."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from characters.people.person import Person

MALE_HAIR = ("bald", "buzz", "short", "part", "quiff", "curly", "medium", "sides")
FEMALE_HAIR = ("long", "wavy", "bob", "part", "afro", "back", "pixie", "curls")
BEARDS = ("none", "shadow", "stubble", "short", "full", "goatee", "moustache")
BEARD_SHARES = (0.30, 0.20, 0.16, 0.14, 0.08, 0.07, 0.05)
STUBBLE = {"none": 0.12, "shadow": 0.4, "stubble": 0.6, "short": 0.6, "full": 0.5, "goatee": 0.3, "moustache": 0.25}

# The uniform block of the shaders: name -> number of vec4.
FIELDS = {
    "ambient": 9, "light_direction": 3, "light_colour": 3, "tone": 1, "lip": 1, "under_hair": 1, "hair": 1, "iris": 1,
    "iris_inner": 1, "tooth": 1, "cloth": 1, "cloth_second": 1, "frame_colour": 1, "temperature": 1, "eye_left": 1,
    "eye_right": 1,
    "skin_a": 1,  # seed, age, blood, freckles
    "skin_b": 1,  # oil, stubble, make-up, scalp under hair
    "skin_c": 1,  # depth of the lips, pores, gloss of the lips, softness of shadows
    "hair_a": 1,  # grey, shine, red of the eyes, pupil
    "dress": 1,  # neckline, depth of a v, weave, jacket
    "grade": 1,  # exposure, contrast, saturation, vignette
    "window": 1,  # half width and height of the window in the eyes; blur; haze
    "hair_b": 1,  # alpha of hair, of brows, of the beard; sheen of the frame
}  # fmt: skip


def linear(*rgb: float) -> np.ndarray:
    """sRGB 0..255 -> linear."""
    return (np.array(rgb, float) / 255) ** 2.2


def warmth(t: float) -> np.ndarray:
    """Colour of light: 0 neutral, positive warm."""
    return np.array([1 + 0.09 * math.tanh(t), 1, 1 - 0.16 * math.tanh(t)])


@dataclass
class Look:
    """See FIELDS; hair and beard are named styles, `camera` says from where the person is seen."""

    style: str
    beard: str
    recession: float
    glasses: bool
    lids: float
    camera: Camera
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The uniform block."""
        rows = []
        for name, count in FIELDS.items():
            value = np.zeros((count, 4), np.float32)
            given = np.atleast_2d(np.asarray(self.values[name], np.float32))
            value[: len(given), : given.shape[1]] = given
            rows.append(value)
        return np.concatenate(rows).astype(np.float32).tobytes()


@dataclass
class Camera:
    """From where a clip is seen. Lengths in units of 10 cm.

    Attributes:
        height: what the frame's height covers at the face; distance: from the face.
        eyes_at: share of the frame's height above the eyes; aside: of the face from the middle.
        roll: degrees; base: degrees of yaw, pitch and roll in which the head is held.
    """

    height: float = 4.3
    distance: float = 11.0
    eyes_at: float = 118 / 272
    aside: float = 0.0
    roll: float = 0.0
    base: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @staticmethod
    def sample(random: np.random.Generator) -> Camera:
        n = random.normal
        return Camera(
            float(np.exp(random.uniform(np.log(3.1), np.log(4.9)))),
            random.uniform(6, 18),
            118 / 272 + float(np.clip(0.03 * n(), -0.08, 0.08)),
            float(np.clip(0.12 * n(), -0.35, 0.35)),
            float(np.clip(5 * n(), -14, 14)),
            (float(np.clip(9 * n(), -26, 26)), float(np.clip(5 * n(), -12, 12)), float(np.clip(4 * n(), -12, 12))),
        )


def sample_look(person: Person, seed: int, kept: Look | None = None) -> Look:
    """A look of a person. With `kept`, hair and beard stay as they were there, so that the shape can be used again."""
    random = np.random.default_rng((81, person.seed, seed))
    melanin = person.melanin
    if kept is not None:
        melanin = float(np.clip(melanin + 0.12 * random.normal(), 0.02, 0.97))
    v: dict[str, np.ndarray] = {}
    lids = random.uniform(0.0, 0.09)
    _skin(person, melanin, random, v)
    style, recession = _hair(person, melanin, random, v)
    beard = "none" if not person.is_male else str(random.choice(BEARDS, p=BEARD_SHARES))
    if kept is not None:
        style, recession, beard = kept.style, kept.recession, kept.beard
    bare = {"bald": 0.12, "buzz": 0.6}.get(style, 0.85)
    v["skin_b"] = np.array([v["skin_b"][0], STUBBLE[beard] * person.is_male, v["skin_b"][2], bare])
    v["hair_b"][0] = 0.75 if style == "buzz" else 1.0
    _light(random, v)
    _clothes(random, v)
    glasses = kept.glasses if kept is not None else bool(random.random() < 0.28)
    return Look(style, beard, recession, glasses, lids, Camera.sample(random), v)


def _skin(person: Person, melanin: float, random: np.random.Generator, v: dict[str, np.ndarray]) -> None:
    light, middle, dark = (np.log(linear(*c)) for c in ((236, 203, 187), (196, 147, 119), (92, 61, 47)))
    low, high = min(2 * melanin, 1), max(0, 2 * melanin - 1)
    tone = np.exp((light * (1 - low) + middle * low) * (1 - high) + dark * high)
    tone = (
        tone * np.exp(random.normal(0, 0.06)) * np.array([1, 1 + 0.02 * random.normal(), 1 + 0.035 * random.normal()])
    )
    lip = tone * np.array([0.82, 0.50, 0.52]) * (1 - 0.15 * melanin) + np.array([0.03, 0, 0.004])
    makeup, gloss = 0.0, random.uniform(0.1, 0.5)
    if not person.is_male and random.random() < 0.6:
        makeup = random.uniform(0.2, 0.9)
        colours = ((170, 40, 50), (190, 85, 85), (150, 45, 75), (200, 110, 105), (120, 30, 45))
        share = random.uniform(0.15, 0.6)
        lip = lip * (1 - share) + linear(*colours[random.integers(5)]) * share
        gloss = random.uniform(0.3, 1)
    blood = float(np.clip(random.normal(0.75, 0.25), 0.2, 1.4)) * (1 - 0.55 * melanin)
    freckles = max(0.0, random.normal(-0.1, 0.5)) * (melanin < 0.35)
    oil = float(np.clip(random.normal(0.7, 0.25), 0.3, 1.2))
    pores = float(np.clip(random.normal(1, 0.3), 0.4, 1.6)) * (0.8 + 0.6 * person.old)
    v["tone"], v["lip"] = tone, lip
    v["skin_a"] = np.array([(person.seed % 97) * 1.37, person.old, blood, freckles])
    v["skin_b"] = np.array([oil, 0, makeup, 0])
    v["skin_c"] = np.array([0, pores, gloss, random.uniform(0.004, 0.03)])
    yellow = 1 - 0.22 * person.old * random.random() - 0.06 * random.random()
    v["tooth"] = 1.12 * linear(240, 231, 214) * np.array([1, 0.5 + 0.5 * yellow, yellow]) * (0.75 + 0.25 * yellow)


def _hair(person: Person, melanin: float, random: np.random.Generator, v: dict[str, np.ndarray]) -> tuple[str, float]:
    colours = [(22, 17, 15), (38, 27, 21), (66, 44, 30), (104, 72, 44), (142, 110, 74), (172, 140, 100), (130, 58, 26)]
    dark = melanin > 0.5
    european = person.origin[2] > 0.5
    shares = np.array(
        [5, 3, 1, 0.3, 0, 0, 0]
        if dark
        else [1.5, 2.5, 3, 2.5, 1.6, 1.2, 0.9]
        if european
        else [5, 3, 1.5, 0.4, 0.1, 0, 0.1]
    )
    hair = linear(*colours[random.choice(7, p=shares / shares.sum())]) * np.exp(random.normal(0, 0.1, 3))
    grey = float(np.clip((person.age - random.uniform(38, 62)) / 22, 0, 1))
    if not person.is_male and random.random() < 0.05:
        hair = linear(*random.uniform(40, 170, 3))
    if not person.is_male and random.random() < 0.5:
        grey *= 0.1
    irises = [
        ((60, 36, 20), (96, 58, 30)), ((82, 56, 28), (128, 92, 44)), ((84, 100, 66), (150, 120, 60)),
        ((92, 122, 146), (150, 170, 180)), ((110, 122, 128), (150, 150, 130)),
    ]  # fmt: skip
    shares = np.array([6, 2, 0.2, 0.05, 0.05] if melanin > 0.3 or hair.sum() < 0.05 else [1.5, 1.5, 1.5, 2.5, 1.5])
    iris, inner = irises[random.choice(5, p=shares / shares.sum())]
    african, old = person.origin[0], person.age
    if person.is_male:
        names = MALE_HAIR
        shares = np.array([0.5, 1.2, 2.2, 2, 1.6, 0.7 + 2 * african, 0.4, 1.6 * (old > 45)])
    else:
        names = FEMALE_HAIR
        shares = np.array([2, 1.8, 1.3, 0.4, 3 * african, 1.8, 1 + 1.2 * (old > 50), 0.8 + 2 * african])
    style = str(random.choice(names, p=shares / shares.sum()))
    recession = float(max(0, random.normal(0.02, 0.05) + 0.1 * person.old)) if person.is_male else 0.0
    v["hair"], v["iris"], v["iris_inner"] = hair, linear(*iris), linear(*inner)
    v["under_hair"] = hair * (1 - 0.6 * grey) + 0.6 * grey * np.array([0.25, 0.24, 0.23])
    v["hair_a"] = np.array([grey, random.uniform(0.6, 1.1), random.uniform(0.2, 0.8), random.uniform(0.28, 0.46)])
    v["hair_b"] = np.array([1.0, 0.85, 0.9, random.random() < 0.4])
    frames = [(15, 15, 16), (70, 40, 20), (160, 150, 140), (60, 20, 25), (190, 150, 80)]
    v["frame_colour"] = linear(*frames[random.integers(5)])
    return style, recession


def _light(random: np.random.Generator, v: dict[str, np.ndarray]) -> None:
    """A key light, a fill and often a rim light, in a room whose walls shine with nine terms."""
    azimuth, height = math.radians(random.uniform(-70, 70)), math.radians(random.uniform(5, 55))
    key = np.array([math.sin(azimuth) * math.cos(height), math.sin(height), math.cos(azimuth) * math.cos(height)])
    behind = math.radians(180 + random.uniform(25, 60) * (1 if azimuth < 0 else -1))
    directions = np.stack((key, [-1.1 * key[0], 0.1, 0.8], [math.sin(behind), 0.35, math.cos(behind)]))
    strengths = (
        random.uniform(0.9, 2.2), random.uniform(0.05, 0.35),
        random.uniform(0.2, 1.6) if random.random() < 0.5 else 0.0,
    )  # fmt: skip
    warm = [0.5 * random.normal(), 0.5 * random.normal(), 0.8 * random.normal()]
    v["light_direction"] = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    v["light_colour"] = np.stack([warmth(w) * s for w, s in zip(warm, strengths, strict=True)])
    level, tint = random.uniform(0.14, 0.45), 0.4 * random.normal()
    ambient = np.zeros((9, 3))
    ambient[0] = level * warmth(tint)
    ambient[1] = level * warmth(tint - 0.4) * random.uniform(0.1, 0.55)
    ambient[2] = level * (0.15 + 0.25 * random.normal())
    ambient[3] = level * 0.35 * random.normal() * warmth(0.6 * random.normal())
    ambient[4:] = level * 0.05 * random.normal(size=(5, 3))
    v["ambient"] = ambient
    v["window"] = np.array([random.uniform(0.10, 0.28), random.uniform(0.12, 0.34), random.uniform(0.1, 0.85), 0])
    saturation = 0.0 if random.random() < 0.03 else random.uniform(0.65, 1.25)
    v["grade"] = np.array(
        [np.exp(random.uniform(-0.35, 0.3)), random.uniform(0.88, 1.25), saturation, random.uniform(0, 0.25)]
    )
    v["temperature"] = warmth(0.7 * random.normal()) * (1 + 0.03 * random.normal(size=3))


def _clothes(random: np.random.Generator, v: dict[str, np.ndarray]) -> None:
    palette = [
        (30, 34, 48), (232, 230, 226), (104, 40, 44), (70, 84, 110), (190, 182, 166), (54, 64, 54), (22, 22, 24),
        (150, 158, 170), (160, 130, 92), (84, 72, 86), (80, 108, 122),
    ]  # fmt: skip
    for name in ("cloth", "cloth_second"):
        v[name] = linear(*palette[random.integers(11)]) * np.exp(random.normal(0, 0.07, 3))
    low = random.random() < 0.85
    neck = random.uniform(5.86, 6.04) if low else 6.4
    vee = min(0.7, max(0.0, random.normal(0.05, 0.3))) if low else 0.0
    v["dress"] = np.array([neck, vee, random.choice([0, 1, 2, 3], p=[0.4, 0.35, 0.12, 0.13]), random.random() < 0.4])
