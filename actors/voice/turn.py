"""End of turn: decided by the voice's sound (smart-turn v3, BSD-2), by the words, and by the length of the silence.

smart-turn's ONNX file comes inside the package pipecat-ai (BSD-2). That package is found, not imported, so it can be
installed without its many dependencies: `pip install --no-deps pipecat-ai`. Without it the words and the silence
decide alone: where the words leave it open, the answer comes later.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np

from actors.voice.config import TurnConfig
from actors.voice.protocols import HEARING_RATE
from characters.assets import SMART_TURN
from characters.errors import UserError

_SECONDS = 8  # of sound that the network looks at
_FRAMES = 800

log = logging.getLogger(__name__)

# A turn does not end with one of these words: more is to come.
_DANGLING = (
    "a an the my your his its our their these and or but so because if when while although though whose to of from "
    "by about into than as is are was were am be um uh er erm hmm i we they he she it's i'm you're let's that's "
    "would could should can will gonna wanna maybe very"
)
# A turn seldom ends with one of these.
_SELDOM = "in on at for with that which who this her like well not really think want me know say tell"
_DANGLING_WORDS, _SELDOM_WORDS = frozenset(_DANGLING.split()), frozenset(_SELDOM.split())
# Questions such as "who is it?" and "what are you?" do end with one.
_QUESTION = re.compile(
    r"^(so |and |but |okay |well |then )*(who|what|when|where|why|how|which|whose|is|are|was|were|do|does|did|can|"
    r"could|would|will|shall|should|may|have|has|am|what's|who's|how's|where's)\b",
    re.IGNORECASE,
)


class SmartTurn:
    """`EndOfTurn` by the smart-turn v3 network on the CPU: about 0.1 s on one core.

    Raises:
        UserError: the file is not such a network.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        import onnxruntime
        from faster_whisper.feature_extractor import FeatureExtractor

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            shape = self._session.get_inputs()[0].shape
        except Exception as error:
            raise UserError(f"{path} is not an ONNX network: {error}") from error
        if shape[1:] != [80, _FRAMES]:
            raise UserError(f"{path} is not a smart-turn v3 network: its input is {shape}, not [n, 80, {_FRAMES}]")
        self._features = FeatureExtractor(feature_size=80, chunk_length=_SECONDS)

    def probability(self, pcm: np.ndarray) -> float:
        """See `EndOfTurn.probability`. Only the last 8 s count."""
        length = _SECONDS * HEARING_RATE
        pcm = np.asarray(pcm[-length:], np.float32)
        pcm = np.pad(pcm, (length - len(pcm), 0))
        # As in the network's training: zero mean and unit variance, padding included.
        pcm = (pcm - pcm.mean()) / np.sqrt(pcm.var() + 1e-7)
        features = self._features(pcm, padding=0)[None, :, :_FRAMES].astype(np.float32)
        return float(self._session.run(None, {"input_features": features})[0].ravel()[0])


def open_end_of_turn(config: TurnConfig) -> SmartTurn | None:
    """The judge by sound that the configuration names; None without one.

    Raises:
        UserError: a named file does not exist or is not a smart-turn network, or pipecat-ai's is missing or altered.
    """
    if config.model == "off":
        return None
    if config.model == "auto":
        if SMART_TURN.path is None:
            log.info("no smart-turn network (pip install --no-deps pipecat-ai): words and silence decide about turns")
            return None
        return SmartTurn(SMART_TURN.file("smart-turn-v3.2-cpu.onnx"))
    path = Path(config.model).expanduser()
    if not path.is_file():
        raise UserError(f"turn.model: {path} does not exist")
    return SmartTurn(path)


def words_finished(text: str) -> bool | None:
    """Whether the words of a turn are complete: True, False, or None if they leave it open."""
    stripped = text.strip()
    words = re.findall(r"[\w']+", stripped.lower())
    if not words:
        return None
    if stripped.endswith(("...", "…", ",", "-", "–", "—", ":")):
        return False
    question = _QUESTION.match(stripped) is not None and stripped.endswith("?")
    if not question and _dictating(stripped, words):
        return False
    if words[-1] in _DANGLING_WORDS and not (question and len(words) <= 4):
        return False
    if question and len(words) >= 3:
        return True
    if words[-1] in _SELDOM_WORDS and not _WHOLE.fullmatch(" ".join(words)):
        return None
    if stripped.endswith((".", "!", "?")):
        return True if len(words) > 2 or _WHOLE.fullmatch(" ".join(words)) else None
    return None


_WHOLE = re.compile(
    r"(yes|yeah|yep|no|nope|okay|ok|sure|stop|wait|hello|hi|hey|thanks|thank you|bye|goodbye|please|good|great|nice|"
    r"really|cool|why|what|who|how|when|where)( (please|there|thanks|you|it|sure|not|so))?"
)


# What is given piece by piece, with pauses: numbers, letters, addresses.
_DICTATED_WORDS = (
    "number numbers phone telephone mobile cell code pin zip postcode postal account card iban serial reference order "
    "booking extension digits password address email mail spell spelled spelt spelling plate passport policy"
)
_DIGIT_WORDS = (
    "oh zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand plus"
)
_DICTATED, _SPOKEN_DIGITS = frozenset(_DICTATED_WORDS.split()), frozenset(_DIGIT_WORDS.split())
_GOES_ON = frozenset(("double", "triple", "dot", "dash", "hyphen", "underscore", "slash", "plus"))


def _dictating(text: str, words: list[str]) -> bool:
    """Whether a number or letters are being dictated, so that a pause is the one between two groups."""
    pieces = [piece for word in words for piece in word.split("_")]
    last = 0
    for piece in reversed(pieces):
        if not (piece.isdigit() or piece in _SPOKEN_DIGITS or (len(piece) == 1 and piece.isalpha())):
            break
        last += 1
    rest = pieces[: len(pieces) - last]
    if rest and rest[-1] in _GOES_ON and _DICTATED & set(rest):
        return True
    if not last or pieces[-last:] in (["i"], ["a"]):
        return False
    digits = sum(len(piece) if piece.isdigit() else 1 for piece in pieces[-last:])
    if _DICTATED & set(rest):
        return True
    return last >= 3 or (not rest and digits >= 3) or (last >= 2 and digits >= 5)


def silence_needed(sound: float | None, text: str, config: TurnConfig) -> int:
    """Milliseconds of silence after which a turn is over.

    Args:
        sound: probability by `EndOfTurn`, None without such a judge.
        text: what was understood so far.
        config: thresholds.

    Words that are incomplete always overrule the sound: whisper writes "and the" whatever the voice does. The sound
    overrules complete words only where it is sure, because its network has not learned synthetic voices.
    """
    words = words_finished(text)
    if words is False:
        return config.max_endpointing_delay_ms
    if sound is None:
        return config.min_endpointing_delay_ms if words else config.unsure_ms
    if sound >= config.threshold:
        return config.min_endpointing_delay_ms
    if words:
        return config.unsure_ms if sound < config.threshold / 2 else config.min_endpointing_delay_ms
    return config.max_endpointing_delay_ms
