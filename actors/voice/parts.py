"""The parts of the voice agent, as the configuration names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actors.voice.config import VoiceConfig
from actors.voice.protocols import HEARING_RATE, EndOfTurn, LanguageModel, SpeechToText, VoiceActivity
from actors.voice.stt import open_stt
from actors.voice.tts import Speaker, open_speaker
from actors.voice.turn import open_end_of_turn
from actors.voice.vad import SileroVad
from characters.character import Character, Voice


@dataclass(frozen=True)
class Parts:
    """What a voice bridge consists of. Without `end_of_turn`, the words alone decide when a turn is over."""

    activity: VoiceActivity
    end_of_turn: EndOfTurn | None
    stt: SpeechToText
    model: LanguageModel
    speaker: Speaker

    def warm_stt(self) -> None:
        """Runs what hears once, so that the first turn is as quick as the others. Blocking."""
        quiet = np.zeros(HEARING_RATE, np.float32)
        self.stt.transcribe(quiet)
        if self.end_of_turn is not None:
            self.end_of_turn.probability(quiet)

    def warm_tts(self) -> None:
        """Runs the voice once, so that the first reply is as quick as the others. Blocking."""
        self.speaker.say("Hello, how are you?")


OpenParts = Callable[[Character], Parts]


def load_parts(config: VoiceConfig) -> OpenParts:
    """Loads and warms up the parts that all sessions share; this takes seconds.

    Returns:
        A function that adds the parts of one session: its VAD, its language model, its character's voice. It raises
        UserError if the voice cannot be opened.

    Raises:
        UserError: a package, file, program or key that the configuration needs is missing.
    """
    stt, end_of_turn = open_stt(config.stt), open_end_of_turn(config.turn)

    def open_parts(character: Character) -> Parts:
        return Parts(
            activity=SileroVad(),
            end_of_turn=end_of_turn,
            stt=stt,
            model=open_model(config, character),
            speaker=open_speaker(config.tts, character.voice),
        )

    trial = open_parts(Character(name="trial", portrait="none", voice=Voice()))
    trial.warm_stt()
    trial.warm_tts()
    return open_parts


def open_model(config: VoiceConfig, character: Character) -> LanguageModel:
    """The language model of one session. Raises UserError if the server's client or its key is missing."""
    if config.llm.engine == "openai":
        from actors.voice.llm import OpenAiModel

        return OpenAiModel(config.llm)
    from actors.voice.persona import ScriptedPersona

    return ScriptedPersona(character, seed=config.llm.seed)
