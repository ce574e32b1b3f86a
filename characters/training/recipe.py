"""The training recipe, as read from conf/train/NAME.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field

from characters.config import load_conf

STAGES = ("autoencoder", "reader", "dit")


@dataclass
class Stage:
    """One stage of training.

    Attributes:
        steps: optimiser steps; the learning-rate schedule spans them.
        seconds: if positive, the schedule also ends after this much time, whichever comes first.
        batch: samples in a step, on each GPU.
        learning_rate: learning rate of AdamW.
        muon_rate: learning rate of Muon, which trains the stage's large matrices; 0 = AdamW trains them too.
    """

    steps: int = 1000
    seconds: float = 0.0
    batch: int = 24
    learning_rate: float = 1e-3
    muon_rate: float = 0.015


@dataclass
class Recipe:
    """All numbers that decide what the weights become.

    Attributes:
        model: name of a model config, or a path to one.
        seed: seed of identities, motion, order and noise.
        clips: rendered clips that each GPU keeps in its memory (uint8, 144 kB a frame).
        chunks: chunks in a clip.
        scatter: draw controls at random over their whole range instead of idle motion. A reader needs this, because
            idle motion rarely blinks and never reaches extremes.
        calm: smallest share of the range of head movement; each clip takes a share between this and 1.
        people: share of the clips that show rendered people (characters/people/) rather than drawn characters.
        looks: clips of each person, in other light, clothes and rooms.
        refine: weight of the worst tiles in the loss. If it is positive, autoencoder and DiT continue from the weights
            in the folder; the DiT keeps its audio encoder, and trains most on what it draws worst.
        compile: whether torch.compile compiles the networks.
        log_every: steps between log lines.
        autoencoder: the first stage.
        reader: the second stage: the network with which `characters evaluate` reads mouth and pose off frames.
        dit: the last stage.
    """

    model: str = "small"
    seed: int = 1
    clips: int = 4096
    chunks: int = 24
    scatter: bool = False
    calm: float = 1.0
    people: float = 0.0
    looks: int = 2
    refine: float = 0.0
    compile: bool = True
    log_every: int = 100
    autoencoder: Stage = field(default_factory=Stage)
    reader: Stage = field(default_factory=Stage)
    dit: Stage = field(default_factory=Stage)


def load_recipe(name: str) -> Recipe:
    """Read conf/train/NAME.yaml or a path, see `characters.config.load_conf`, which raises UserError."""
    return load_conf("train", name, Recipe, "recipe")
