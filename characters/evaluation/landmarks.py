"""An independent reader of mouths: MediaPipe's face mesh, whose weights come inside its package.

The project's own reader learnt on the project's pictures; photographs need an instrument that never saw them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from characters.errors import UserError

ENLARGE = 3  # the detector wants faces larger than a frame of 176x272 shows them
FOREHEAD, CHIN = 10, 152
INNER_LIPS = ((13, 14), (82, 87), (312, 317))  # pairs above each other
CORNERS = (61, 291)
LIDS = ((159, 145), (386, 374))  # upper and lower, of both eyes
EYE_CORNERS = ((33, 133), (362, 263))
IRISES = (468, 473)


class Landmarks:
    """Finds one face in a picture. Not for several threads."""

    def __init__(self) -> None:
        """Raises UserError if mediapipe is missing."""
        try:
            import mediapipe
        except ImportError:
            raise UserError(
                "photographs are measured with MediaPipe; install it with: pip install mediapipe==0.10.14"
            ) from None
        self._mesh: Any = mediapipe.solutions.face_mesh.FaceMesh(
            static_image_mode=True, max_num_faces=1, refine_landmarks=True, min_detection_confidence=0.2
        )

    def find(self, image: np.ndarray, enlarge: int = ENLARGE) -> np.ndarray | None:
        """uint8 [h, w, 3] -> float [478, 2] pixels (x, y), or None where no face is found."""
        height, width = image.shape[:2]
        large = Image.fromarray(image).resize((width * enlarge, height * enlarge), Image.Resampling.LANCZOS)
        found = self._mesh.process(np.asarray(large)).multi_face_landmarks
        return np.array([[p.x * width, p.y * height] for p in found[0].landmark]) if found else None

    def read(self, frames: np.ndarray) -> np.ndarray:
        """Frames uint8 [n, h, w, 3] -> float [n, 3]: opening and width of the mouth, and how far the lids are open; NaN
        where no face is found. Mouths are measured by the face's height, lids by the eyes' width."""
        out = np.full((len(frames), 3), np.nan)
        for i, frame in enumerate(frames):
            points = self.find(frame)
            if points is not None:
                out[i] = opening(points), width(points), lids(points)
        return out


def _distance(points: np.ndarray, pair: tuple[int, int]) -> float:
    return float(np.linalg.norm(points[pair[0]] - points[pair[1]]))


def face_height(points: np.ndarray) -> float:
    return _distance(points, (FOREHEAD, CHIN))


def opening(points: np.ndarray) -> float:
    """The gap between the inner lips, by the face's height."""
    return float(np.mean([_distance(points, pair) for pair in INNER_LIPS])) / face_height(points)


def width(points: np.ndarray) -> float:
    """The distance of the mouth's corners, by the face's height."""
    return _distance(points, CORNERS) / face_height(points)


def lids(points: np.ndarray) -> float:
    """The gap between the lids, by the eyes' width."""
    gaps, widths = (np.mean([_distance(points, pair) for pair in pairs]) for pairs in (LIDS, EYE_CORNERS))
    return float(gaps / max(float(widths), 1e-6))


def shape(points: np.ndarray) -> np.ndarray:
    """What stays when a face speaks: places of eyes, nose and outline, without position, size and roll: [n, 2]."""
    still = [33, 133, 362, 263, 168, 6, 197, 195, 5, 4, 98, 327, 127, 356, 234, 454, 10, 109, 338, 67, 297]
    eyes = points[list(IRISES)]
    across = eyes[1] - eyes[0]
    size = float(np.linalg.norm(across)) or 1.0
    cos, sin = across / size
    turned = (points[still] - eyes.mean(0)) @ np.array([[cos, -sin], [sin, cos]])
    return turned / size
