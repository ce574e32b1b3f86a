"""Makes the held-out test set that ships in `characters/evaluation/heldout/`.

    python -m characters.training.heldout_set

Sixteen sentences that training never speaks, by four voices: hibari, an espeak-ng voice left out of training, and two
flite voices, whose whole family is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import av
import numpy as np

from characters.chunk import SAMPLE_RATE
from characters.evaluation.heldout import FOLDER
from characters.speech import Speech, open_voice
from characters.speech.hibari import HibariVoice
from characters.training.align import Aligner
from characters.training.sentences import HELD_OUT, sentences
from characters.training.speech_corpus import HELD_OUT_ESPEAK_VOICE, Utterance, join

VOICES = {
    "hibari": "hibari",
    "espeak": f"espeak:{HELD_OUT_ESPEAK_VOICE}",
    "flite-slt": "flite:slt",
    "flite-rms": "flite:rms",
}
PAUSE = 0.3  # s before, between and after the sentences of a clip
BITS = 11  # of 16: the features do not resolve the rest, and without it FLAC needs half the room


def hibari_aligner(voice: HibariVoice, examples: int = 200, seed: int = 0) -> Aligner:
    """A forced aligner fitted to hibari on random training sentences."""
    text = sentences(np.random.default_rng(seed))
    return Aligner(s for _ in range(examples) for s in voice.speak(next(text)))


def clips() -> dict[str, tuple[str, Utterance]]:
    """Clip name -> (text, utterance), for every voice and sentence."""
    made = {}
    for family, engine in VOICES.items():
        voice = open_voice(engine)
        aligner = hibari_aligner(voice) if isinstance(voice, HibariVoice) else None
        for i, text in enumerate(HELD_OUT):
            parts: list[Speech] = [aligner.refine(s) if aligner else s for s in voice.speak(text)]
            made[f"{family}-{i:02d}"] = (text, join(parts, [PAUSE] * (len(parts) + 1)))
    return made


def write(folder: Path) -> None:
    """A FLAC file for each clip, `heldout.json` (texts) and `heldout.npz` (curves by name, float16 [frames, 5])."""
    folder.mkdir(parents=True, exist_ok=True)
    made = clips()
    step = 1 << (16 - BITS)
    for name, (_, utterance) in made.items():
        pcm = (np.round(np.clip(utterance.pcm, -1, 1) * 32767 / step) * step).clip(-32768, 32767).astype(np.int16)
        with av.open(str(folder / f"{name}.flac"), "w", format="flac") as container:
            stream = container.add_stream("flac", rate=SAMPLE_RATE, layout="mono")
            stream.options = {"compression_level": "12"}
            frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
            frame.sample_rate = SAMPLE_RATE
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    texts = {name: text for name, (text, _) in made.items()}
    (folder / "heldout.json").write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n", "utf8")
    np.savez_compressed(folder / "heldout.npz", **{name: u.mouth.astype(np.float16) for name, (_, u) in made.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the held-out speech test set.")
    parser.add_argument("--out", type=Path, default=FOLDER)
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
