"""From the curves that drive a character to the units of a face.

The drawn world and the people share the curves: MOUTH_CHANNELS and MOTION_CHANNELS of `characters.chunk`. So labels are
exact in both: a frame shows what its row of numbers says.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from characters.chunk import MOTION_CHANNELS, MOUTH_CHANNELS
from characters.people.template import load_template

# Travel of the head at 1, close to the drawn world's: degrees, and units of 10 cm.
YAW, PITCH, ROLL = 8.5, 5.5, 4.0
SHIFT, SCALE = 0.1, 0.03
GAZE_X, GAZE_Y = 24.0, 16.0  # degrees that the eyes turn at gaze = 1
JAW = 0.80  # of the unit jawOpen, at open = 1


def smoothstep(x: Tensor, low: float, high: float) -> Tensor:
    t = ((x - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def named(rows: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
    """[n, channels] -> [n] by channel."""
    return dict(zip(names, rows.float().unbind(-1), strict=True))


def unit_weights(motion: Tensor, mouth: Tensor, lids: float = 0.05) -> Tensor:
    """Weights of the face units.

    Args:
        motion: [n, 12]; mouth: [n, 5].
        lids: how far the person's lids hang when the eyes are open, 0 to 0.2.

    Returns:
        float32 [n, 52], in the order of the template's units.
    """
    m, t = named(motion, MOTION_CHANNELS), named(mouth, MOUTH_CHANNELS)
    opened, rounded, teeth, tongue = t["open"], t["round"], t["teeth"], t["tongue"]
    wide, narrow = t["wide"].clamp(min=0), (-t["wide"]).clamp(min=0)
    smile, sad = m["smile"].clamp(min=0), (-m["smile"]).clamp(min=0)
    blink = m["blink"].clamp(0, 1)
    ajar = smoothstep(opened, 0.0, 0.12)
    shut = (1 - ajar) * (1 - rounded)
    # f and v: the upper teeth stand on the lower lip
    bite = teeth * smoothstep(-opened, -0.17, -0.09) * (1 - 2.5 * wide).clamp(0, 1)
    lift, drop = m["brow"].clamp(min=0), (-m["brow"]).clamp(min=0)
    both = {
        "mouthStretch": 0.30 * wide,
        "mouthSmile": 0.10 * (1 - rounded) + 0.75 * smile * (1 - 0.6 * rounded) + 0.25 * wide,
        "mouthFrown": 0.35 * sad,
        "mouthUpperUp": (0.42 * teeth * ajar + 0.22 * opened) * (1 - 0.4 * rounded) + 0.25 * bite,
        "mouthLowerDown": (0.40 * teeth * ajar + 0.15 * opened) * (1 - 0.5 * rounded) * (1 - bite),
        "mouthPress": 0.25 * shut,
        "cheekSquint": 0.5 * smile,
        "eyeSquint": 0.3 * smile * (1 - blink),
        "eyeBlink": lids + (1 - lids) * blink,
        "eyeLookDown": 0.6 * m["gaze_y"].clamp(min=0),
        "eyeLookUp": 0.7 * (-m["gaze_y"]).clamp(min=0),
        "browOuterUp": 0.55 * lift,
        "browDown": 0.6 * drop,
    }
    one = {
        "jawOpen": JAW * opened * (1 - 0.2 * rounded) + 0.02 * teeth,
        "mouthFunnel": rounded * (0.25 + 0.6 * (1.6 * opened).clamp(max=1)),
        "mouthPucker": rounded * (1 - 0.6 * opened) + 0.25 * narrow * (1 - rounded),
        "mouthRollLower": 0.55 * bite + 0.12 * shut,
        "mouthRollUpper": 0.08 * shut,
        "browInnerUp": 0.75 * lift,
        "tongueOut": 0.12 * tongue,
    }
    units = one | {name + side: value for name, value in both.items() for side in ("Left", "Right")}
    zero = torch.zeros_like(opened)
    return torch.stack([units.get(name, zero) for name in load_template().units.names], 1)


def rotation(axis: str, degrees: Tensor) -> Tensor:
    """[n] degrees about x, y or z -> [n, 3, 3]."""
    angle = degrees * (math.pi / 180)
    cos, sin, zero, one = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle), torch.ones_like(angle)
    rows = {
        "x": (one, zero, zero, zero, cos, -sin, zero, sin, cos),
        "y": (cos, zero, sin, zero, one, zero, -sin, zero, cos),
        "z": (cos, -sin, zero, sin, cos, zero, zero, zero, one),
    }[axis]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def head_turn(motion: Tensor, base: Tensor) -> Tensor:
    """Rotation of the head, [n, 3, 3]; base: [3], degrees of yaw, pitch and roll in which the head is held."""
    m = named(motion, MOTION_CHANNELS)
    yaw = rotation("y", YAW * m["yaw"] + base[0])
    pitch = rotation("x", PITCH * m["pitch"] + base[1])
    return yaw @ pitch @ rotation("z", -(ROLL * m["roll"] + base[2]))


def head_shift(motion: Tensor, distance: float) -> Tensor:
    """Translation of the head, [n, 3], seen from `distance`."""
    m = named(motion, MOTION_CHANNELS)
    return torch.stack((SHIFT * m["x"], -SHIFT * m["y"], SCALE * distance * m["scale"]), 1)


def eye_turn(motion: Tensor, side: int) -> Tensor:
    """Rotation of one eyeball, [n, 3, 3]; side: 1 for the person's left, -1 for the right. Eyes converge a little."""
    m = named(motion, MOTION_CHANNELS)
    return rotation("y", GAZE_X * m["gaze_x"] - 1.0 * side) @ rotation("x", GAZE_Y * m["gaze_y"])


def wrinkles(motion: Tensor, mouth: Tensor) -> Tensor:
    """How strongly skin folds, [n, 4]: forehead, outside the eyes, beside nose and mouth, between the brows."""
    m, t = named(motion, MOTION_CHANNELS), named(mouth, MOUTH_CHANNELS)
    smile = m["smile"].clamp(0, 1)
    return torch.stack(
        (m["brow"].clamp(0, 1), smile, (0.8 * smile + 0.3 * t["wide"].clamp(0, 1)), (-m["brow"]).clamp(0, 1)), 1
    )
