"""Procedural characters: identities as named traits, and a vectorised renderer that draws them in any pose."""

from characters.drawing.identity import identity_vector, repeat_frames, sample_identities, select
from characters.drawing.renderer import eye_centre, mouth_centre, render
from characters.drawing.scene import HEIGHT, WIDTH, Identities

__all__ = [
    "HEIGHT",
    "WIDTH",
    "Identities",
    "eye_centre",
    "identity_vector",
    "mouth_centre",
    "render",
    "repeat_frames",
    "sample_identities",
    "select",
]
