"""The characters that ship with the project: their traits, and the script that draws their portraits.

Run `python -m characters.drawing.gallery` to write `characters/gallery/<name>/portrait.png`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from characters.chunk import MOTION_CHANNELS
from characters.drawing import palettes, styles
from characters.drawing.identity import derive_colours
from characters.drawing.renderer import render
from characters.drawing.scene import Identities

GALLERY = Path(__file__).parent.parent / "gallery"
FEATURES = (
    "has_beard", "has_moustache", "has_goatee", "lash", "has_glasses", "has_earring", "has_hat", "has_headphones",
    "has_band",
)  # fmt: skip
KINDS = {"human": 0.0, "animal": 1.0, "robot": 2.0}
COLOURS = {
    "hair": "#3a2620", "iris": "#6b4426", "eye_white": "#fbfaf8", "screen": "#16202e", "led": "#6ff0e0",
    "muzzle": "#fdf0df", "glasses": "#1f2430", "hat": "#3f5f8f",
}  # fmt: skip


def design(kind: str, build: str, hair: str, clothes: str, colours: dict[str, str], **traits: float) -> Identities:
    """One identity from hand-picked styles, colours and numbers.

    Args:
        kind: "human", "animal" or "robot".
        build: a species or a make of robot; ignored for people.
        hair, clothes: names of styles.
        colours: "#rrggbb" by name. Names without a default in COLOURS must be there.
        traits: numbers that replace the middle of the styles' ranges.

    Returns:
        Traits with one row.
    """
    body = {"human": {"": styles.HUMAN}, "animal": styles.SPECIES, "robot": styles.ROBOTS}[kind][build]
    ranges = styles.COMMON | body | styles.HAIR[hair] | styles.CLOTHES[clothes]
    row = {name: torch.tensor([sum(bounds) / 2]) for name, bounds in ranges.items()}
    row |= {name: torch.zeros(1) for name in FEATURES} | {"kind": torch.tensor([KINDS[kind]]), "light": torch.ones(1)}
    row |= {name: torch.tensor([float(value)]) for name, value in traits.items()}
    row.pop("is_fabric")
    if kind != "human":
        row["has_hair"] = torch.zeros(1)
    row |= {name: torch.tensor([palettes.rgb(code)]) for name, code in (COLOURS | colours).items()}
    derive_colours(row)
    return row


CHARACTERS: dict[str, Identities] = {
    "ruby": design(
        "human", "", "long", "hoodie",
        {
            "ground": "#bfe7e3", "ground_low": "#7cc8c3", "disc": "#e4f7f4", "skin": "#fad9c4", "hair": "#b5432a",
            "brow_colour": "#7c2f22", "iris": "#3f8f5f", "lip": "#cf5560", "cloth": "#28536b", "collar": "#fff3e4",
            "accent": "#f2a541",
        },
        hair_part=-20, hair_sweep=16, hair_length=112, hair_side=11, hair_flare=0.12, hair_top=12, hair_drop=100,
        hair_power=5, lash=3, eye_slant=0.06, blush_strength=0.6, jaw=0.2, face_width=52, quiff=5, quiff_x=-6,
    ),
    "kenji": design(
        "human", "", "side part", "blazer",
        {
            "ground": "#cfe3f5", "ground_low": "#9fc4e8", "disc": "#e6f2fb", "skin": "#f1c7a2", "hair": "#1c1920",
            "brow_colour": "#1c1920", "iris": "#4a2f20", "lip": "#c98476", "cloth": "#2f4264", "collar": "#f4f1ea",
            "accent": "#f2a541", "glasses": "#252a36",
        },
        has_glasses=1, glasses_power=3.2, glasses_height=17, hair_part=24, hair_top=15, quiff=13, quiff_x=-10,
        brow_thick=3.2, lash_line=1.9, jaw=0.14, chin_power=2.4, eye_slant=0.1, light=-1, blush_strength=0.25,
    ),
    "amara": design(
        "human", "", "afro", "turtleneck",
        {
            "ground": "#fbe3a8", "ground_low": "#f3b95f", "disc": "#fdf3d6", "skin": "#7d4a30", "hair": "#21191d",
            "brow_colour": "#21191d", "iris": "#54351f", "lip": "#a8434c", "cloth": "#b4433f", "collar": "#c45a50",
            "accent": "#f4c542",
        },
        lash=3.6, has_earring=1, earring_size=5.5, earring_hoop=1, hair_top=27, hair_side=21, hair_length=44,
        hair_curl=3, hair_lobes=9, lip_upper=5, lip_lower=6.8, lip_gloss=0.5, nose_width=10, jaw=0.18, face_width=51,
        brow_arch=4, has_disc=0.9, disc_size=96, disc_y=112, disc_x=0,
    ),
    "walter": design(
        "human", "", "crop", "suit",
        {
            "ground": "#d7ead9", "ground_low": "#9fc6a9", "disc": "#ebf6ec", "skin": "#f3cdb2", "hair": "#d4d5d8",
            "brow_colour": "#b9babf", "iris": "#3a78a8", "lip": "#c9857a", "cloth": "#6b5344", "collar": "#f2ead8",
            "accent": "#a63d40", "glasses": "#a8803a",
        },
        has_beard=1, has_moustache=1, moustache_size=5, beard_size=4, has_glasses=1, glasses_power=2, glasses_height=16,
        hair_line=-54, hair_power=2.2, hair_top=7, quiff=2, brow_thick=3.6, eye_open=0.9, eye_slant=-0.05,
        nose_width=11, nose_length=20, face_width=54, blush_strength=0.5, jaw=0.08, ear_height=15,
    ),
    "leila": design(
        "human", "", "scarf", "turtleneck",
        {
            "ground": "#2e3a59", "ground_low": "#1b2340", "disc": "#465786", "skin": "#dda876", "hair": "#3f9a98",
            "brow_colour": "#3a2620", "iris": "#6b4426", "lip": "#b9505f", "cloth": "#f2b25f", "collar": "#37898a",
            "accent": "#f6d365",
        },
        has_ears=0, lash=3.4, eye_slant=0.1, brow_thick=2.6, brow_arch=3.5, jaw=0.22, lip_gloss=0.5, hair_length=112,
        blush_strength=0.5, light=-1, disc_x=18, disc_y=100, disc_size=84, has_disc=0.9, has_hill=0,
    ),
    "miso": design(
        "animal", "cat", "bald", "crew",
        {
            "ground": "#f7cfd8", "ground_low": "#ec93a8", "disc": "#fdebf0", "skin": "#e9a566", "muzzle": "#fff5e8",
            "brow_colour": "#9a5f30", "iris": "#4f9a5a", "lip": "#8a4a40", "cloth": "#3d405b", "collar": "#f4f1de",
            "accent": "#81b29a",
        },
        has_blaze=0.9, blaze_width=7, nose_pink=1, has_band=1, eye_slant=0.12, blush_strength=0.4, has_brow=0.3,
    ),
    "fenn": design(
        "animal", "fox", "bald", "shirt",
        {
            "ground": "#264b4e", "ground_low": "#14302f", "disc": "#3a7070", "skin": "#e2703a", "muzzle": "#fff4e8",
            "brow_colour": "#8a3d1c", "iris": "#b5782a", "lip": "#7d3a30", "cloth": "#e3bd7a", "collar": "#f7f1e3",
            "accent": "#e4572e",
        },
        eye_slant=0.15, has_brow=0.8, light=-1, has_disc=0.9, has_hill=0.5, hill_tilt=0.5, hill_y=205,
    ),
    "bao": design(
        "animal", "panda", "bald", "hoodie",
        {
            "ground": "#dff0c8", "ground_low": "#a9d383", "disc": "#f2fae6", "skin": "#f6f3ee", "muzzle": "#ffffff",
            "brow_colour": "#555555", "iris": "#8a5a2b", "lip": "#6b4a48", "cloth": "#3b6e8f", "collar": "#f7f7ea",
            "accent": "#f2784b",
        },
        eye_slant=-0.04, blush_strength=0.45, face_width=58,
    ),
    "pixel": design(
        "robot", "screen", "bald", "hoodie",
        {
            "ground": "#e6dcf5", "ground_low": "#bda5e4", "disc": "#f5effc", "skin": "#f4efe6", "screen": "#1d2036",
            "led": "#6ff0e0", "eye_white": "#10142a", "iris": "#3fd0c4", "brow_colour": "#58c9c0", "lip": "#62dcd0",
            "cloth": "#6a4fb0", "collar": "#f6d365", "accent": "#ff7aa2",
        },
        screen_corner=20, blush_strength=0.3, skull_power=3.4, chin_power=3.6, has_brow=0.8, brow_thick=2.4,
    ),
    "cobalt": design(
        "robot", "visor", "bald", "turtleneck",
        {
            "ground": "#ffd9b8", "ground_low": "#ff9f72", "disc": "#ffeedd", "skin": "#6d97c9", "muzzle": "#d5dfe8",
            "screen": "#18223a", "led": "#ffd166", "eye_white": "#0f1628", "iris": "#f2b13c", "brow_colour": "#e0ab4a",
            "lip": "#3f5f90", "cloth": "#28354f", "collar": "#3a4b6c", "accent": "#ffc247",
        },
        has_brow=0.0, light=-1, blush_strength=0.0, skull_power=2.7, chin_power=3.2, jaw=0.1, has_antenna=1,
        antenna=13, screen_width=49, screen_height=22, screen_y=-1, screen_corner=20, mouth_smile=5,
    ),
}  # fmt: skip


def portrait(identity: Identities) -> Image.Image:
    """The character at rest, mouth closed in a slight smile: 176 x 272, RGB."""
    motion = torch.zeros(1, len(MOTION_CHANNELS))
    motion[0, MOTION_CHANNELS.index("smile")] = 0.3
    frame = render(identity, motion, torch.zeros(1, 5))[0]
    return Image.fromarray((frame * 255).round().byte().permute(1, 2, 0).numpy())


def main() -> None:
    for name, identity in CHARACTERS.items():
        folder = GALLERY / name
        folder.mkdir(parents=True, exist_ok=True)
        portrait(identity).save(folder / "portrait.png", optimize=True)


if __name__ == "__main__":
    main()
