"""Draws people with OpenGL 4.3 through EGL: on a graphics card, or with Mesa on any CPU; no display is needed.

Only which triangle or strand a sample shows is rasterised. Everything dear, moving vertices and shading, runs in
compute shaders, because a data-centre card has few units for fragments and many for compute. A clip is drawn frame by
frame without waiting, and read back at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from characters.chunk import MOTION_CHANNELS, MOUTH_CHANNELS
from characters.errors import UserError
from characters.people.anatomy import base_points
from characters.people.expression import (
    eye_turn,
    head_shift,
    head_turn,
    named,
    unit_weights,
    wrinkles,
)
from characters.people.figure import Figure, moves
from characters.people.look import FIELDS, Camera, Look
from characters.people.template import load_template

SHADERS = Path(__file__).parent / "shaders"
SHADOW = 1024  # pixels of the shadow map's side
SHADOW_LINE = 3.0  # pixels of a strand there
SKY_VIEWS = 32  # directions from which occlusion is measured
UNITS = 13  # vec4 of unit weights
FRAME_FIELDS = {
    "view": "mat4", "light_view": "mat4", "head": "mat4", "turn_left": "mat4", "turn_right": "mat4", "units": "vec4",
    "jaw_x": "vec4", "jaw_y": "vec4", "jaw_z": "vec4", "tongue": "vec4", "mouth": "vec4", "motion": "vec4",
    "wrinkle": "vec4", "camera": "vec4", "across": "vec4", "above": "vec4", "ahead": "vec4", "size": "vec4",
}  # fmt: skip
BUFFERS = {
    "rest": "vec4", "local": "vec4", "posed": "vec4", "normal": "vec4", "place": "vec4", "traits": "vec4",
    "offsets": "uint", "moves": "vec4", "still": "vec4", "around": "int", "quads": "ivec4", "triangles": "int",
    "shade_of": "vec4", "strand_rest": "vec4", "bound": "int", "strand": "vec4", "pieces": "int",
    "strand_traits": "vec4", "strand_normals": "vec4", "ribbon": "vec4", "exposure": "float", "pixels": "uint",
}  # fmt: skip
PLACES = {name: i for i, name in enumerate(BUFFERS)}
FRAME_FLOATS = 256  # of one frame's block, a multiple of every driver's alignment


@cache
def _blocks() -> str:
    frame = "".join(
        f"    {kind} {name}{f'[{UNITS}]' if name == 'units' else ''};\n" for name, kind in FRAME_FIELDS.items()
    )
    look = "".join(f"    vec4 {name}{f'[{n}]' if n > 1 else ''};\n" for name, n in FIELDS.items())
    return (
        f"layout(std140, binding = 0) uniform FrameBlock {{\n{frame}}};\n"
        f"layout(std140, binding = 1) uniform LookBlock {{\n{look}}};\n"
    )


def source(*names: str) -> str:
    """GLSL of the named files after the blocks that they share, with the storage buffers that they use."""
    text = "\n".join((SHADERS / name).read_text() for name in ("common.glsl", *names))
    buffers = "".join(
        f"layout(std430, binding = {PLACES[name]}) buffer Block{PLACES[name]} {{ {kind} {name}[]; }};\n"
        for name, kind in BUFFERS.items()
        if re.search(rf"\b{name}\[", text)
    )
    layout = "".join(re.findall(r"^layout\(local_size.*\n", text, re.M))
    text = re.sub(r"^layout\(local_size.*\n", "", text, flags=re.M)
    return f"#version 430\n{layout}{_blocks()}{buffers}{text}"


def perspective(camera: Camera, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """View-projection [4, 4], the eye's place [3], rows across, above, ahead [3, 3], half the frame over distance."""
    near, far = camera.distance - 5, camera.distance + 6
    half = camera.height / 2 / camera.distance
    projection = np.zeros((4, 4))
    projection[0, 0], projection[1, 1] = height / (half * width), 1 / half
    projection[2, 2], projection[2, 3] = -(far + near) / (far - near), -2 * far * near / (far - near)
    projection[3, 2] = -1
    angle = np.radians(camera.roll)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    eye = np.array([camera.aside, 7.30 - camera.height * (0.5 - camera.eyes_at), 0.9 + camera.distance])
    view = np.eye(4)
    view[:3, :3], view[:3, 3] = turn, -turn @ eye
    rows = np.stack((turn[0] * half * width / height, turn[1] * half, -turn[2]))
    return projection @ view, eye, rows, half


def orthographic(towards: np.ndarray, centre: np.ndarray, reach: float) -> np.ndarray:
    """View from a far light, [4, 4]."""
    z = towards / np.linalg.norm(towards)
    x = np.cross([0, 1, 0.01], z)
    x /= np.linalg.norm(x)
    rows = np.stack((x / reach, np.cross(z, x) / reach, -z / 4))
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = rows, -rows @ centre
    return out


@dataclass
class Pose:
    """The frames of a clip.

    Attributes:
        motion: float32 [n, 12]; mouth: float32 [n, 5].
    """

    motion: Tensor
    mouth: Tensor


class Renderer:
    """Holds one person at a time on the graphics card.

    `load` takes a person, `dress` a look and a room, `draw` frames. One thread only.
    """

    def __init__(self, width: int = 176, height: int = 272, samples: int = 2) -> None:
        """Open EGL.

        Args:
            width, height: pixels of a frame; samples: samples of a pixel along each axis.

        Raises:
            UserError: moderngl or EGL is missing.
        """
        try:
            import moderngl
        except ImportError:
            raise UserError("people are drawn with moderngl; install it with: pip install -e '.[train]'") from None
        try:
            settings: dict[str, Any] = {"standalone": True, "backend": "egl", "require": 430}
            self.context = moderngl.create_context(**settings)
        except Exception as error:  # the binding raises whatever the driver says
            raise UserError(
                f"people are drawn with OpenGL 4.3 through EGL, which cannot be had here ({error}); "
                "on Debian: apt-get install libegl1 libgl1-mesa-dri"
            ) from None
        self.gl, self.width, self.height, self.samples = moderngl, width, height, samples
        context = self.context
        context.gc_mode = "auto"
        compute = lambda *names: context.compute_shader(source(*names))  # noqa: E731
        self.pose, self.smooth = compute("pose.comp"), compute("normals.comp")
        self.strands, self.ribbons = compute("strands.comp"), compute("ribbons.comp")
        self.occlusion, self.meter, self.develop = (compute(f"{n}.comp") for n in ("occlusion", "meter", "develop"))
        self.shade = compute("light.glsl", "skin.glsl", "materials.glsl", "shade.comp")
        program = lambda n: context.program(vertex_shader=source(f"{n}.vert"), fragment_shader=source(f"{n}.frag"))  # noqa: E731
        self.mesh, self.cloth, self.strand = (program(n) for n in ("mesh", "cloth", "strand"))
        fine = (width * samples, height * samples)
        self.ids = context.texture(fine, 1, dtype="u4")
        self.ids.filter = (moderngl.NEAREST, moderngl.NEAREST)
        self.raw = context.texture(fine, 4, dtype="f2")
        self.raw.filter = (moderngl.NEAREST, moderngl.NEAREST)
        self.picture = context.framebuffer([self.ids], context.depth_renderbuffer(fine))
        self.shadow = context.depth_texture((SHADOW, SHADOW))
        self.shadow.compare_func = ""
        self.shadow.repeat_x = self.shadow.repeat_y = False
        self.shadow_view = context.framebuffer(depth_attachment=self.shadow)
        self.room = context.texture((width, height), 3, dtype="f2")
        self.strand_indices: list[Any] = []
        self.look_block = context.buffer(reserve=16 * sum(FIELDS.values()))
        self.buffers = {"exposure": context.buffer(reserve=16)}
        shared = moves()
        self.buffers |= {
            "offsets": context.buffer(shared.offsets.tobytes()),
            "moves": context.buffer(shared.entries.tobytes()),
            "around": context.buffer(shared.around.tobytes()),
            "quads": context.buffer(shared.quads.tobytes()),
        }
        self.smooth_count, self.moved = len(shared.around), shared.vertices
        base = base_points()
        low = (base[:, 1] < 6.65)[load_template().body.quads].any(1)
        self.cloth_faces = np.flatnonzero(np.concatenate((low, low)))
        for texture, unit in ((self.shadow, 0), (self.ids, 1), (self.raw, 2), (self.room, 3)):
            texture.use(unit)
        for shader in (self.shade, self.occlusion):
            shader["shadow"] = 0
        self.shade["ids"] = 1
        self.meter["raw"] = self.develop["raw"] = 2
        self.develop["room"] = 3

    def release(self) -> None:
        """Give the context back; the renderer is then of no use."""
        self.context.release()

    def load(self, figure: Figure, look: Look) -> None:
        """Take a person. `look` is needed for the lamp under which occlusion by hair is measured."""
        context, g = self.context, self.gl
        self.figure = figure
        # Skin triangles that clothes may cover come first, so that clothes are a range of them.
        count = 2 * len(load_template().body.quads)
        skin, others = figure.triangles[:count], figure.triangles[count:]
        rest = np.setdiff1d(np.arange(count), self.cloth_faces)
        triangles = np.concatenate((skin[self.cloth_faces], skin[rest], others)).astype(np.int32)
        arrays = {
            "rest": figure.rest, "place": figure.place, "traits": figure.traits, "still": figure.still,
            "shade_of": figure.shade, "triangles": triangles, "strand_rest": figure.strands.points,
            "bound": figure.strands.bound, "pieces": figure.strands.pieces, "strand_traits": figure.strands.traits,
            "strand_normals": figure.strands.normals,
        }  # fmt: skip
        self.vertices, self.strand_points = len(figure.rest), len(figure.strands.points)
        for name in (*arrays, "local", "posed", "normal", "strand", "ribbon"):
            if name in self.buffers:
                self.buffers[name].release()
        for name, array in arrays.items():
            self.buffers[name] = context.buffer(np.ascontiguousarray(array).tobytes())
        for name in ("local", "posed", "normal"):
            self.buffers[name] = context.buffer(reserve=16 * self.vertices)
        self.buffers["strand"] = context.buffer(reserve=16 * self.strand_points)
        self.buffers["ribbon"] = context.buffer(reserve=64 * self.strand_points)
        b = self.buffers
        self.v_mesh = context.vertex_array(self.mesh, [(b["posed"], "4f", "position")], b["triangles"])
        self.v_cloth = context.vertex_array(
            self.cloth,
            [(b["posed"], "4f", "position"), (b["normal"], "4f", "normal"), (b["place"], "4f", "place")],
            b["triangles"],
        )
        pieces = figure.strands.pieces
        corners = 2 * pieces[:, None] + np.array([0, 2, 1, 1, 2, 3])
        for index in self.strand_indices:
            index.release()
        # A third of the hair, drawn thicker, throws the same shadow.
        casting = pieces[: figure.hair_pieces // 3, None] + np.array([0, 1])
        self.casts = len(casting) > 0
        self.strand_indices = [
            context.buffer(np.ascontiguousarray(x).astype(np.int32)) for x in (corners, casting) if len(x)
        ]
        self.v_strand = context.vertex_array(
            self.strand, [(b["ribbon"], "4f 1f 12x", "position", "shown_here")], self.strand_indices[0]
        )
        if self.casts:
            self.v_casting = context.vertex_array(self.mesh, [(b["strand"], "4f", "position")], self.strand_indices[1])
        for name, buffer in self.buffers.items():
            buffer.bind_to_storage_buffer(PLACES[name])
        context.enable_only(g.DEPTH_TEST)
        self.dress(look, np.zeros((self.height, self.width, 3), np.float32))
        self._measure_occlusion(look)

    def dress(self, look: Look, room: np.ndarray) -> None:
        """Take a look, and a room as float32 [height, width, 3], linear light."""
        self.look = look
        anatomy = self.figure.anatomy
        values = look.values
        values["eye_left"], values["eye_right"] = anatomy.eyes[0][0], anatomy.eyes[1][0]
        values["skin_c"][0] = anatomy.lip_depth
        self.look_block.write(look.pack())
        self.look_block.bind_to_uniform_block(1)
        self.room.write(np.ascontiguousarray(room.astype(np.float16)).tobytes())

    def _frames(self, pose: Pose, camera: Camera, light: np.ndarray, lids: float) -> np.ndarray:
        """Blocks of all frames: float32 [n, FRAME_FLOATS]."""
        motion, mouth = pose.motion.float(), pose.mouth.float()
        n, anatomy = len(motion), self.figure.anatomy
        m, t = named(motion, MOTION_CHANNELS), named(mouth, MOUTH_CHANNELS)
        weights = unit_weights(motion, mouth, lids)
        names = load_template().units.names
        jaw, out = weights[:, names.index("jawOpen")], t["tongue"]
        fields: dict[str, np.ndarray] = {}
        view, eye, rows, half = perspective(camera, self.width, self.height)
        turn = head_turn(motion, torch.tensor(camera.base)).double().numpy()
        head = np.zeros((n, 4, 4))
        head[:, :3, :3], head[:, 3, 3] = turn, 1
        shift = head_shift(motion, camera.distance).double().numpy()
        head[:, :3, 3] = anatomy.pivot + shift - turn @ anatomy.pivot
        fields["view"], fields["head"] = np.broadcast_to(view, (n, 4, 4)), head
        fields["light_view"] = np.broadcast_to(orthographic(light, np.array([0, 6.9, 0.6]), 2.6), (n, 4, 4))
        for name, side in (("turn_left", 1), ("turn_right", -1)):
            full = np.tile(np.eye(4), (n, 1, 1))
            full[:, :3, :3] = eye_turn(motion, side).numpy()
            fields[name] = full
        fields["units"] = torch.nn.functional.pad(weights, (0, 4 * UNITS - weights.shape[1])).numpy()
        for i, name in enumerate(("jaw_x", "jaw_y", "jaw_z")):
            fields[name] = np.broadcast_to(anatomy.jaw[:, i], (n, 4))
        stack = lambda *columns: torch.stack(columns, 1).numpy()  # noqa: E731
        zero = torch.zeros(n)
        fields["tongue"] = stack(1 - 0.55 * out, zero, 0.05 * out - 0.03, 0.03 * out - 0.06)
        fields["mouth"] = stack(t["open"], t["round"], t["teeth"], jaw)
        fields["motion"] = stack(m["breath"], m["blink"], m["gaze_y"], m["smile"])
        fields["wrinkle"] = wrinkles(motion, mouth).numpy()
        fields["camera"] = np.broadcast_to([*eye, half], (n, 4))
        for name, row in zip(("across", "above", "ahead"), rows, strict=True):
            fields[name] = np.broadcast_to([*row, 0], (n, 4))
        fine = (self.width * self.samples, self.height * self.samples)
        fields["size"] = np.broadcast_to([*fine, self.width, self.height], (n, 4))
        columns = []
        for name, kind in FRAME_FIELDS.items():
            value = np.asarray(fields[name], np.float32)
            # GLSL's matrices lie column by column.
            columns.append((value.transpose(0, 2, 1) if kind == "mat4" else value).reshape(n, -1))
        block = np.concatenate(columns, 1)
        self.head = head
        self.view = view
        return np.pad(block, ((0, 0), (0, FRAME_FLOATS - block.shape[1]))).astype(np.float32)

    def _run(self, shader: object, threads: int, **uniforms: int) -> None:
        for name, value in uniforms.items():
            shader[name] = value  # type: ignore[index]
        shader.run(-(-threads // 64))  # type: ignore[attr-defined]
        self.context.memory_barrier()

    def _move(self) -> None:
        """Vertices and strands to where the bound frame has them."""
        self._run(self.pose, self.vertices, count=self.vertices, moved=self.moved)
        self._run(self.smooth, self.vertices, count=self.vertices, smooth_count=self.smooth_count)
        self._run(self.strands, self.strand_points, count=self.strand_points)

    def _cast_shadow(self) -> None:
        g = self.gl
        self.shadow_view.use()
        self.shadow_view.clear(depth=1.0)
        self.mesh["light"] = 1
        self.v_mesh.render()
        if self.casts:
            self.context.line_width = SHADOW_LINE
            self.v_casting.render(g.LINES)

    def _measure_occlusion(self, look: Look) -> None:
        """How much of the sky every vertex of the person at rest sees."""
        rest = Pose(torch.zeros(1, len(MOTION_CHANNELS)), torch.zeros(1, len(MOUTH_CHANNELS)))
        k = np.arange(SKY_VIEWS) + 0.5
        z, angle = 1 - 2 * k / SKY_VIEWS, k * 2.39996
        views = np.stack((np.sqrt(1 - z * z) * np.cos(angle), z, np.sqrt(1 - z * z) * np.sin(angle)), 1)
        views = views[views[:, 1] > -0.75]
        frame = self._frames(rest, Camera(), views[0], look.lids)
        blocks = np.repeat(frame, len(views), 0)
        at = 16  # light_view is the second field
        for block, towards in zip(blocks, views, strict=True):
            block[at : at + 16] = orthographic(towards, np.array([0, 6.6, 0.5]), 2.9).T.ravel()
        buffer = self.context.buffer(blocks.tobytes())
        for i, towards in enumerate(views):
            buffer.bind_to_uniform_block(0, offset=4 * FRAME_FLOATS * i, size=4 * FRAME_FLOATS)
            if i == 0:
                self._move()
            self._cast_shadow()
            self.occlusion["from"] = tuple(float(x) for x in towards)
            self._run(self.occlusion, self.vertices, count=self.vertices)
        buffer.release()

    def draw(self, motion: Tensor, mouth: Tensor, *, meter: bool = True) -> np.ndarray:
        """Draw frames of the person as dressed.

        Args:
            motion: [n, 12]; mouth: [n, 5], on the CPU.
            meter: set the exposure by the first frame; else it stays as it is.

        Returns:
            uint8 [n, height, width, 3].
        """
        look, count, context = self.look, len(motion), self.context
        blocks = self._frames(Pose(motion, mouth), look.camera, look.values["light_direction"][0], look.lids)
        frames = context.buffer(blocks.tobytes())
        size = 4 * self.width * self.height * count
        if "pixels" not in self.buffers or self.buffers["pixels"].size < size:
            self.buffers["pixels"] = context.buffer(reserve=size)
        self.buffers["pixels"].bind_to_storage_buffer(PLACES["pixels"])
        self.raw.bind_to_image(0, read=False, write=True)
        groups = (-(-self.width * self.samples // 8), -(-self.height * self.samples // 8))
        for i in range(count):
            frames.bind_to_uniform_block(0, offset=4 * FRAME_FLOATS * i, size=4 * FRAME_FLOATS)
            self._move()
            self._run(self.ribbons, self.strand_points, count=self.strand_points)
            self._cast_shadow()
            self._rasterise()
            self.shade["cloth_first"] = 0
            self.shade.run(*groups)
            context.memory_barrier()
            if meter and i == 0:
                self.meter.run(1)
                context.memory_barrier()
            self.develop["frame"] = i
            self.develop.run(-(-self.width // 8), -(-self.height // 8))
            context.memory_barrier()
        pixels = np.frombuffer(self.buffers["pixels"].read(size), np.uint8)
        frames.release()
        return pixels.reshape(count, self.height, self.width, 4)[..., :3]

    def _rasterise(self) -> None:
        g = self.gl
        self.picture.use()
        self.picture.clear()
        self.mesh["light"] = 0
        self.v_mesh.render()
        layers = ((0, 0.035), (1, 0.10)) if self.look.values["dress"][3] else ((0, 0.035),)
        for layer, off in layers:
            self.cloth["layer"], self.cloth["off"] = layer, off
            self.v_cloth.render(g.TRIANGLES, 3 * len(self.cloth_faces))
        self.v_strand.render(g.TRIANGLES)

    def centres(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (x, y) of the shut mouth's middle and midway between the eyes, of the frames last drawn: [n, 2]."""
        anatomy = self.figure.anatomy
        lips = load_template().masks[:, 0] > 0.5
        points = np.stack((anatomy.fine[lips].mean(0), (anatomy.eyes[0][0] + anatomy.eyes[1][0]) / 2))
        homogeneous = np.concatenate((points, np.ones((2, 1))), 1)
        clip = np.einsum("ij,njk,pk->npi", self.view, self.head, homogeneous)
        ndc = clip[..., :2] / clip[..., 3:]
        pixels = np.stack(((ndc[..., 0] + 1) / 2 * self.width, (1 - ndc[..., 1]) / 2 * self.height), -1)
        return pixels[:, 0].astype(np.float32), pixels[:, 1].astype(np.float32)
