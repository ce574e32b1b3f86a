"""Faces in pictures, by MediaPipe's detector and its mesh of landmarks, as networks that lie beside this library.

Source: BlazeFace (Bazarevsky et al. 2019), full range, and Face Mesh (Kartynnik et al. 2019); weights/face/README.md
tells where the files are from. Both run under LiteRT in tens of milliseconds on one core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WEIGHTS = Path(__file__).resolve().parents[1] / "weights/face"
_DETECTOR_SIDE, _MESH_SIDE = 192, 192
_GRID = 48  # the detector answers for so many cells a side
_POINTS = 468
_SURE, _FACE = 0.5, 0.5  # the least scores of a box and of a mesh
_SURE_TURNED, _FACE_TURNED = 0.6, 0.9  # where the picture was turned to find one
# Landmarks: where the hair begins, chin, tip of the nose, the face's edges beside the ears, corners of the eyes.
FOREHEAD, CHIN, NOSE, EDGES, EYES = 10, 152, 1, (234, 454), ((33, 133), (362, 263))


@dataclass(frozen=True, eq=False)
class Face:
    """A face in a picture. "Left" is the picture's left.

    Attributes:
        points: float32 [468, 2], x and y in pixels.
        score: that it is one, 0 to 1.
    """

    points: np.ndarray
    score: float

    @cached_property
    def eyes(self) -> tuple[float, float]:
        """The middle between the eyes, (x, y) in pixels."""
        left, right = self._eyes
        x, y = (left + right) / 2
        return float(x), float(y)

    @cached_property
    def height(self) -> float:
        """From where the hair begins to the chin, in pixels."""
        return float(np.linalg.norm(self.points[FOREHEAD] - self.points[CHIN]))

    @cached_property
    def roll(self) -> float:
        """Of the line of the eyes, in degrees, clockwise."""
        across = self._eyes[1] - self._eyes[0]
        return math.degrees(math.atan2(across[1], across[0]))

    @cached_property
    def turn(self) -> float:
        """Where the nose is between the face's edges: 0 from the front, -1 and 1 in profile, beyond from behind."""
        left, right = (self.points[i] for i in EDGES)
        across = right - left
        return float(2 * np.dot(self.points[NOSE] - left, across) / np.dot(across, across) - 1)

    @cached_property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom, in pixels."""
        (left, top), (right, bottom) = self.points.min(0), self.points.max(0)
        return float(left), float(top), float(right), float(bottom)

    @cached_property
    def _eyes(self) -> tuple[np.ndarray, np.ndarray]:
        left, right = (self.points[list(corners)].mean(0) for corners in EYES)
        return left, right

    def moved(self, x: float, y: float) -> Face:
        """In a picture whose origin lies at (-x, -y) of this one."""
        return Face(self.points + np.array((x, y), np.float32), self.score)


def available() -> bool:
    """Whether faces can be looked for on this machine: there are no wheels of LiteRT for Macs with Intel's CPUs."""
    try:
        import ai_edge_litert.interpreter  # noqa: F401
    except ImportError:
        return False
    return True


def find_faces(image: Image.Image) -> tuple[list[Face], int]:
    """The faces of a picture, the largest first, and how far the picture lies on its side.

    Args:
        image: RGB.

    Returns:
        The faces as they are in `image.rotate(turned, expand=True)`, and turned: 0, or 90, 180 or 270 degrees
        counter-clockwise if the picture stands on its side or its head.
    """
    for turned in (0, 270, 90, 180):
        limits = (_SURE, _FACE) if turned == 0 else (_SURE_TURNED, _FACE_TURNED)
        if faces := _upright_faces(image.rotate(turned, expand=True), *limits):
            # The detector knows faces that lie on their side too.
            if more := round(faces[0].roll / 90) * 90 % 360:
                upright = _upright_faces(image.rotate(turned + more, expand=True), _SURE, _FACE)
                if upright and abs(upright[0].roll) < 45:
                    return upright, (turned + more) % 360
            return faces, turned
    return [], 0


def _upright_faces(image: Image.Image, sure: float, enough: float) -> list[Face]:
    faces = _look(image, sure, enough)
    if not faces and max(image.size) > 1.4 * min(image.size):
        # In a long picture a face may be too small for the detector: look at squares of it too.
        (width, height), side = image.size, min(image.size)
        steps = math.ceil(2 * max(width, height) / side) - 1
        for step in range(steps):
            share = step / (steps - 1)
            x, y = round(share * (width - side)), round(share * (height - side))
            faces += [face.moved(x, y) for face in _look(image.crop((x, y, x + side, y + side)), sure, enough)]
    found: list[Face] = []
    for face in sorted(faces, key=lambda face: -face.height):
        if all(math.dist(face.eyes, other.eyes) > 0.5 * other.height for other in found):
            found.append(face)
    return found


def _look(image: Image.Image, sure: float, enough: float) -> list[Face]:
    faces = []
    for centre, side, eyes in _boxes(image, sure):
        points, score = _mesh(image, centre, side, eyes)
        if score >= enough:
            faces.append(Face(points, score))
    return faces


def _boxes(image: Image.Image, sure: float) -> list[tuple[np.ndarray, float, np.ndarray]]:
    """Centre, side and eyes [2, 2] of what may be faces, in pixels, the surest first."""
    n, (width, height) = _DETECTOR_SIDE, image.size
    scale = n / max(width, height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = np.asarray(image.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.BILINEAR))
    left, top = (n - size[0]) // 2, (n - size[1]) // 2
    given = np.zeros((1, n, n, 3), np.float32)
    given[0, top : top + size[1], left : left + size[0]] = small
    offsets, scores = _run("detector", given / 127.5 - 1)
    scores = 1 / (1 + np.exp(-scores[:, 0].clip(-80, 80)))
    cells = np.stack(np.meshgrid(np.arange(_GRID), np.arange(_GRID)), -1).reshape(-1, 2)
    places = offsets.reshape(-1, 8, 2)
    places[:, [0, *range(2, 8)]] += ((cells + 0.5) * (n / _GRID))[:, None]
    found: list[tuple[np.ndarray, float, np.ndarray]] = []
    for i in np.argsort(-scores)[:100]:
        if scores[i] < sure:
            break
        # The box's centre and size, then six points: the eyes come first.
        centre, side, eyes = places[i, 0], float(places[i, 1].max()), places[i, 2:4]
        if all(np.linalg.norm(centre - other) > 0.5 * max(side, size) for other, size, _ in found):
            found.append((centre, side, eyes))
    origin = np.array((left, top))
    return [((c - origin) / scale, side / scale, (eyes - origin) / scale) for c, side, eyes in found]


def _mesh(image: Image.Image, centre: np.ndarray, side: float, eyes: np.ndarray) -> tuple[np.ndarray, float]:
    """Landmarks [468, 2] of the face in a box, in pixels, and the score that it is one."""
    across = eyes[1] - eyes[0]
    angle, step = math.atan2(across[1], across[0]), 1.5 * side / _MESH_SIDE
    turn = step * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    origin = centre - turn @ np.full(2, _MESH_SIDE / 2)
    reduce = max(1, int(step))  # so that no pixel is passed over
    small = image.reduce(reduce) if reduce > 1 else image
    rows = (np.column_stack((turn, origin)) / reduce).ravel()
    patch = small.transform(
        (_MESH_SIDE, _MESH_SIDE), Image.Transform.AFFINE, tuple(rows.tolist()), Image.Resampling.BILINEAR
    )
    places, score = _run("landmarks", np.asarray(patch, np.float32)[None] / 255)
    inside = places.reshape(_POINTS, 3)[:, :2]
    return (inside @ turn.T + origin).astype(np.float32), float(1 / (1 + np.exp(-score.ravel()[0])))


def _run(name: str, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A network's two outputs, the larger first."""
    network = _load(name)
    network.set_tensor(network.get_input_details()[0]["index"], given)
    network.invoke()
    first, second = (network.get_tensor(detail["index"])[0] for detail in network.get_output_details())
    return (first, second) if first.size > second.size else (second, first)


@lru_cache(maxsize=2)
def _load(name: str) -> Any:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    # Without delegates: they are announced on stderr, and save nothing that a user would feel.
    kernels = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    network = Interpreter(str(WEIGHTS / f"{name}.tflite"), num_threads=1, experimental_op_resolver_type=kernels)
    network.allocate_tensors()
    return network
