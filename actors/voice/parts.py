"""Opens the parts of the voice agent that a configuration names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actors.voice.config import VoiceConfig
from actors.voice.protocols import HEARING_RATE, EndOfTurn, LanguageModel, SpeechToText, VoiceActivity
from actors.voice.stt import open_stt
from actors.voice.tts import Speaker, open_speaker
from actors.voice.turn import open_end_of_turn
from actors.voice.vad import SileroVad
from characters.character import Character


@dataclass(frozen=True)
class Parts:
    """What a voice bridge is made of. `end_of_turn` None: the words alone decide."""

    activity: VoiceActivity
    end_of_turn: EndOfTurn | None
    stt: SpeechToText
    model: LanguageModel
    speaker: Speaker

    def warm_stt(self) -> None:
        """Runs the hearing once, so that the first turn is as quick as the others. Blocking."""
        quiet = np.zeros(HEARING_RATE, np.float32)
        self.stt.transcribe(quiet)
        if self.end_of_turn is not None:
            self.end_of_turn.probability(quiet)

    def warm_tts(self) -> None:
        """Runs the voice once, for the same reason. Blocking."""
        self.speaker.say("Hello, how are you?")


def open_parts(config: VoiceConfig, character: Character) -> Parts:
    """Loads everything; about a second with the defaults.

    Raises:
        UserError: a package, file, program or key that the configuration needs is missing.
    """
    return Parts(
        activity=SileroVad(),
        end_of_turn=open_end_of_turn(config.turn),
        stt=open_stt(config.stt),
        model=open_model(config, character),
        speaker=open_speaker(config.tts, character.voice),
    )


def open_model(config: VoiceConfig, character: Character) -> LanguageModel:
    """Who thinks up the replies. Raises UserError if the server's client or its key is missing."""
    if config.llm.engine == "openai":
        from actors.voice.llm import OpenAiModel

        return OpenAiModel(config.llm)
    from actors.voice.persona import ScriptedPersona

    return ScriptedPersona(character, seed=config.llm.seed)
