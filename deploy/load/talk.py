"""What a user without a browser asks, and when that user may speak."""

from __future__ import annotations

import time

import numpy as np

from characters.speech import open_voice
from deploy.load.user import User

QUESTIONS = ("What is your name?", "How old are you?", "What can you do for me?", "How are you today?", "Who are you?")
SPEECH = 0.01  # magnitude; silence stays below it after the codec
_PAUSE_SECONDS = 0.8
_PATIENCE = 60.0


async def quiet(user: User) -> None:
    """Wait until nothing has been heard for a while."""
    await user.until(lambda: time.monotonic() - user.quiet_since(SPEECH) > _PAUSE_SECONDS, "no end", _PATIENCE)


def speech(text: str) -> np.ndarray:
    """The text spoken, without the silence around it: float32 [n] at 24 kHz."""
    pcm = np.concatenate([piece.pcm for piece in open_voice("hibari").speak(text)])
    loud = np.flatnonzero(np.abs(pcm) > 0.02)
    return (0.7 * pcm[loud[0] : loud[-1] + 1]).astype(np.float32)
