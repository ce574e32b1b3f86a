"""Clips of people: each person in several looks, with the numbers that every frame shows."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from characters.chunk import MOTION_CHANNELS
from characters.people.dirt import add_dirt
from characters.people.figure import Figure, make_figure
from characters.people.look import Look, sample_look
from characters.people.renderer import Renderer
from characters.people.room import sample_room

SMILE = MOTION_CHANNELS.index("smile")
TOOTHY, SPEAKING = 0.20, 0.15  # shares of portraits that show teeth in a smile, or speak
AHEAD = 2  # figures made in advance, by each worker


@dataclass(frozen=True)
class Setting:
    """A look, and the room behind: float16 [H, W, 3], linear light."""

    look: Look
    room: np.ndarray


@dataclass(frozen=True)
class PersonClip:
    """A clip.

    Attributes:
        portrait: uint8 [H, W, 3], dirty; frames: uint8 [n, H, W, 3], clean.
        mouth_xy, eye_xy: float32 [n, 2], pixels.
        motion: float32 [n, 12], what the frames show: the motion asked for, with the person's smile.
    """

    portrait: np.ndarray
    frames: np.ndarray
    mouth_xy: np.ndarray
    eye_xy: np.ndarray
    motion: Tensor


def portrait_pose(random: np.random.Generator, spoken: Tensor) -> tuple[Tensor, Tensor]:
    """How a person looks on a portrait: motion [1, 12] and mouth [1, 5]; `spoken` [n, 5]: what the clip says."""
    motion = torch.from_numpy(random.normal(size=(1, len(MOTION_CHANNELS))).astype(np.float32) * 0.15)
    motion[0, 0] = 0
    mouth = torch.zeros(1, spoken.shape[1])
    motion[0, SMILE] = random.uniform(-0.2, 0.9) if random.random() < 0.6 else 0.15
    kind = random.random()
    if kind < SPEAKING:
        mouth[0] = spoken[random.integers(len(spoken))]
    elif kind < SPEAKING + TOOTHY:
        mouth[0] = torch.tensor(
            [random.uniform(0.04, 0.3), random.uniform(0.4, 1), 0, random.uniform(0.8, 1), 0.1], dtype=torch.float32
        )
        motion[0, SMILE] = random.uniform(0.4, 1)
    return motion, mouth


def film(renderer: Renderer, setting: Setting, seed: int, motion: Tensor, mouth: Tensor) -> PersonClip:
    """A clip of the person whom the renderer holds: motion [n, 12], mouth [n, 5]."""
    random = np.random.default_rng((7, seed))
    renderer.dress(setting.look, setting.room)
    rest, still = portrait_pose(random, mouth)
    # The portrait's smile is the person's: it stays in the clip, as far as speech lets it.
    kept = motion.clone()
    kept[:, SMILE] = (kept[:, SMILE] + 0.5 * (rest[0, SMILE] - 0.15)).clamp(-1, 1)
    pictures = renderer.draw(torch.cat((rest, kept)), torch.cat((still, mouth)))
    mouths, eyes = renderer.centres()
    return PersonClip(add_dirt(pictures[0], random), pictures[1:], mouths[1:], eyes[1:], kept)


def _prepare(seed: int, looks: int, width: int, height: int) -> tuple[Figure, list[Setting]]:
    torch.set_num_threads(1)
    figure, first = make_figure(seed, torch.device("cpu"))
    settings = []
    for number in range(looks):
        look = first if number == 0 else sample_look(figure.person, number, kept=first)
        room = sample_room(look, np.random.default_rng((9, seed, number)), width, height)
        settings.append(Setting(look, room.astype(np.float16)))
    return figure, settings


def people(
    seeds: Sequence[int], looks: int, size: tuple[int, int], workers: int
) -> Iterator[tuple[Figure, list[Setting]]]:
    """People of the seeds in order with their looks, made by other processes ahead of time; with 0 workers by this one.

    Args:
        size: width and height of the rooms, in pixels.
    """
    if workers == 0:
        for seed in seeds:
            yield _prepare(seed, looks, *size)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(workers, context) as pool:
        waiting: deque[Future[tuple[Figure, list[Setting]]]] = deque()
        for seed in seeds:
            waiting.append(pool.submit(_prepare, seed, looks, *size))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def spare_processors() -> int:
    """Processes that may make people beside this one."""
    return max(0, len(os.sched_getaffinity(0)) - 1)


def film_people(
    renderer: Renderer, first_seed: int, motion: Tensor, mouth: Tensor, looks: int, workers: int
) -> Iterator[PersonClip]:
    """Clips in order: `looks` neighbouring clips show one person in other light, clothes, rooms and skin.

    Args:
        first_seed: of the people; the person of clip i has seed first_seed + i // looks.
        motion: [clips, frames, 12]; mouth: [clips, frames, 5]; on the CPU.
    """
    count = len(motion)
    seeds = range(first_seed, first_seed + -(-count // looks))
    at = 0
    for figure, settings in people(seeds, looks, (renderer.width, renderer.height), workers):
        renderer.load(figure, settings[0].look)
        for setting in settings[: count - at]:
            yield film(renderer, setting, first_seed * 7 + at, motion[at], mouth[at])
            at += 1
