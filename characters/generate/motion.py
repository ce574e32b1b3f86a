"""Idle motion: what a character does when nobody tells it what to do. It blinks, looks around, sways and breathes.

Randomness is a hash of (seed, row, frame, purpose) instead of a generator's state. A row is therefore the same in every
batch and on every device, the stream never repeats, and all that is carried from chunk to chunk is a few numbers a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from characters.chunk import FPS, FRAMES_PER_CHUNK, MOTION_CHANNELS

_MASK = 0xFFFFFFFF  # 32 bits kept in an int64
# closure of the lid, frame by frame: it falls in two frames and opens more slowly
BLINKS = torch.tensor(
    [
        [0.55, 1.0, 0.85, 0.45, 0.15, 0.0, 0.0, 0.0],
        [0.45, 0.95, 1.0, 0.70, 0.35, 0.10, 0.0, 0.0],
        [0.35, 0.90, 1.0, 0.95, 0.60, 0.30, 0.10, 0.0],
    ]
)
BLINK_FRAMES = BLINKS.shape[1]
REFRACTORY = 1.0  # least seconds between two blinks that are not a double
DOUBLE = 0.12  # share of blinks that a second one follows at once

# band-limited waves and their knots a second
WAVES = {
    "x slow": 0.25, "y slow": 0.25, "roll slow": 0.22, "scale slow": 0.2, "yaw slow": 0.28, "pitch slow": 0.25,
    "x quick": 0.9, "y quick": 0.9, "roll quick": 0.8, "yaw quick": 1.0, "pitch quick": 1.0,
    "brow": 0.5, "smile": 0.4, "mood": 0.12, "breath": 0.1,
}  # fmt: skip
# purposes of the other random numbers; the waves come after them
BLINK_WAIT, BLINK_SHAPE, BLINK_DOUBLE, LOOK_X, LOOK_Y, LOOK_AWAY, LOOK_REST, CONSTANT, WAVE_RATE, WAVE_START = range(10)
FIRST_WAVE = 16


def hash_unit(seed: int, rows: Tensor, purpose: int | Tensor, tick: int | Tensor) -> Tensor:
    """Uniform float64 in [0, 1) for int64 keys that broadcast: two rounds of a 32-bit avalanche hash."""
    state = rows * 0x9E3779B1 + seed * 0x85EBCA77 + purpose * 0xC2B2AE3D
    for key in (tick, 0x27D4EB2F):
        state = (state ^ key) & _MASK
        state = ((state ^ (state >> 16)) * 0x7FEB352D) & _MASK
        state = ((state ^ (state >> 15)) * 0x846CA68B) & _MASK
        state = state ^ (state >> 16)
    return state.double() / (_MASK + 1)


# Sway of a live character. Training shows the whole range; people sit calmer, and calm heads are drawn sharper.
LIVE_SWAY = 0.4


class IdleMotion:
    """An endless, seeded stream of motion for a batch of characters.

    Args:
        batch: rows; row i depends on (seed, i) only.
        seed: any integer.
        sway: share of the full range of head movement, one for all or [batch, 1]; blinks, gaze, brows and breath are
            not scaled.
        device: where the chunks are made.
    """

    def __init__(
        self, batch: int = 1, *, seed: int = 0, sway: float | Tensor = 1.0, device: str | torch.device = "cpu"
    ) -> None:
        self.frame = 0
        self.sway = sway
        self.seed = seed & _MASK
        self.rows = torch.arange(batch, device=device)
        constants = hash_unit(self.seed, self.rows, CONSTANT, torch.arange(4, device=device)[:, None])
        self.liveliness = 0.6 + 0.5 * constants[0, :, None]
        self.blink_rate = 12.5 + 6.5 * constants[1]
        self.breath_rate = 0.22 + 0.08 * constants[2, :, None]
        self.breath_start = constants[3, :, None]
        self.waves = FIRST_WAVE + torch.arange(len(WAVES), device=device)[:, None, None]
        hertz = torch.tensor(list(WAVES.values()), dtype=torch.float64, device=device)[:, None, None]
        self.wave_rate = hertz * (0.8 + 0.4 * self._unit(WAVE_RATE, self.waves))
        self.wave_start = 64 * self._unit(WAVE_START, self.waves)
        self.knots = torch.arange(4, device=device)[:, None, None, None]
        self.profiles = BLINKS.double().to(device)
        self.reach = torch.tensor([0.95, 0.7], dtype=torch.float64, device=device)
        self.profile = torch.zeros_like(self.rows)
        self.until_blink = self._wait(hash_unit(self.seed, self.rows, BLINK_WAIT, _MASK))
        self.until_look = torch.zeros_like(self.rows)
        self.target = torch.zeros(batch, 2, dtype=torch.float64, device=device)
        self.gaze = torch.zeros_like(self.target)
        self.lean = torch.zeros_like(self.target)  # the head follows the eyes, slowly

    def next_chunk(self) -> Tensor:
        """The next four frames: float32 [batch, 4, 12] in the order of MOTION_CHANNELS."""
        # every event number of the chunk at once: [purpose, frame, batch]
        ticks = self.frame + torch.arange(FRAMES_PER_CHUNK, device=self.rows.device)
        purposes = torch.arange(LOOK_REST + 1, device=self.rows.device)[:, None, None]
        events = hash_unit(self.seed, self.rows, purposes, ticks[:, None])
        blink = torch.stack([self._blink(*events[: BLINK_DOUBLE + 1, i]) for i in range(FRAMES_PER_CHUNK)], 1)
        looks = [self._look(*events[LOOK_X : LOOK_REST + 1, i]) for i in range(FRAMES_PER_CHUNK)]
        gaze, lean = (torch.stack(parts, 1) for parts in zip(*looks, strict=True))

        seconds = ticks.double() / FPS
        wave = dict(zip(WAVES, self._waves(seconds), strict=True))
        lively = self.liveliness
        head = {
            name: lively * (0.65 * wave[f"{name} slow"] + 0.3 * wave[f"{name} quick"])
            for name in ("x", "y", "roll", "yaw", "pitch")
        }
        breath = 2 * math.pi * (seconds * self.breath_rate + self.breath_start + 0.12 * wave["breath"])
        channels = {
            "blink": blink,
            "gaze_x": gaze[..., 0] - 0.12 * lean[..., 0],
            "gaze_y": gaze[..., 1] + 0.03 * blink,
            "brow": 0.45 * wave["brow"] + 0.25 * wave["mood"] - 0.3 * gaze[..., 1] * lively,
            "smile": 0.25 + 0.4 * wave["mood"] + 0.15 * wave["smile"],
            "x": head["x"] + 0.15 * head["yaw"],
            "y": head["y"] + 0.08 * torch.sin(breath),
            "roll": head["roll"] + 0.2 * head["x"],
            "scale": 0.7 * lively * wave["scale slow"],
            "yaw": head["yaw"] + 0.45 * lean[..., 0],
            "pitch": 0.8 * head["pitch"] + 0.35 * lean[..., 1],
            "breath": torch.sin(breath + 0.35 * torch.sin(breath)),  # in is quicker than out
        }
        for name in ("x", "y", "roll", "scale", "yaw", "pitch"):
            channels[name] = self.sway * channels[name]
        self.frame += FRAMES_PER_CHUNK
        return torch.stack([channels[name] for name in MOTION_CHANNELS], -1).clamp(-1, 1).float()

    def _unit(self, purpose: int, tick: int | Tensor) -> Tensor:
        """Uniform [..., batch, 1] for a tick [..., 1, 1]."""
        return hash_unit(self.seed, self.rows[:, None], purpose, tick)

    def _waves(self, seconds: Tensor) -> Tensor:
        """All waves at these times [frames]: float64 [waves, batch, frames] in [-1, 1].

        A wave is a cubic B-spline through random knots: smooth, band-limited, and known at any time without a past.
        """
        place = seconds * self.wave_rate + self.wave_start
        knot = place.floor()
        t = place - knot
        values = 2 * hash_unit(self.seed, self.rows[:, None], self.waves, knot.long() + self.knots) - 1
        weights = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
        wave = sum(value * weight for value, weight in zip(values, weights, strict=True))
        return (wave / 6 * 1.9).clamp(-1, 1)  # a spline averages its knots: undo the loss of range

    def _wait(self, unit: Tensor) -> Tensor:
        """Frames until the next blink [batch]: a refractory time, then a Poisson process."""
        share = 1 - DOUBLE  # doubles do not wait
        mean = 60 / self.blink_rate / share - REFRACTORY
        wait = REFRACTORY - mean * torch.log1p(-unit.clamp(max=0.99))
        return (wait * FPS).long()

    def _blink(self, wait: Tensor, shape: Tensor, double: Tensor) -> Tensor:
        """Closure of the lids [batch] in this frame."""
        self.until_blink = self.until_blink - 1
        phase = -self.until_blink  # 0 on the first frame of a blink
        self.profile = torch.where(phase == 0, (shape * len(self.profiles)).long(), self.profile)
        closure = self.profiles[self.profile, phase.clamp(0, BLINK_FRAMES - 1)]
        closure = torch.where(phase < 0, 0.0, closure)
        pause = torch.where(double < DOUBLE, 2, self._wait(wait))
        self.until_blink = torch.where(phase >= BLINK_FRAMES - 1, pause, self.until_blink)
        return closure

    def _look(self, x: Tensor, y: Tensor, away: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """Gaze and lean, each [batch, 2]: the eyes jump within two frames, then rest, mostly on the viewer."""
        self.until_look = self.until_look - 1
        jump = self.until_look < 0
        away = away < 0.5
        offset = (2 * torch.stack([x, y], 1) - 1) * torch.where(away[:, None], self.reach, 0.1)
        self.target = torch.where(jump[:, None], offset, self.target)
        frames = (8 + 58 * rest.square()) * torch.where(away, 0.7, 1.3)
        self.until_look = torch.where(jump, frames.long(), self.until_look)
        self.gaze = self.gaze + 0.78 * (self.target - self.gaze)
        self.lean = self.lean + 0.06 * (self.gaze - self.lean)
        return self.gaze, self.lean
