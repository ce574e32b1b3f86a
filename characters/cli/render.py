"""`characters render`: a video of a character saying a recording or a text."""

from __future__ import annotations

import logging
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import click

from characters.cli.waiting import PLAIN_SECONDS, Waiting
from characters.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from rich.progress import Progress

    from characters.character import Voice
    from characters.chunk import Chunk

log = logging.getLogger(__name__)

MAX_TEXT = 20_000  # characters: about half an hour of speech
LEAD_IN = 0.3  # seconds of silence before a spoken text
TAIL = 0.5  # and after it
TEXT_RATE = 15.0  # characters a second, about, for the progress bar


@click.command()
@click.option(
    "--character",
    "-c",
    required=True,
    metavar="NAME|FOLDER",
    help="Who speaks: a name of `characters list`, or a folder.",
)
@click.option("--audio", type=click.Path(path_type=Path), help="A recording: any audio or video file.")
@click.option("--text", help="Text to say in the character's own voice.")
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="The video to write, an .mp4.")
@click.option("--model", default="small", show_default=True, help="A model of conf/model.")
@click.option("--mark", is_flag=True, help='Show "AI-generated" in the picture.')
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Of the motion.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
def render(
    character: str, audio: Path | None, text: str | None, out: Path, model: str, mark: bool, seed: int, device: str
) -> None:
    """Make a video of a character saying a recording or a text.

    The video has 24 frames a second, H.264 and AAC. Memory does not grow with the recording.
    """
    if (audio is None) == (text is None):
        raise click.UsageError("give either --audio or --text")
    # Check what is cheap to check before the model is loaded.
    from characters.character import load_character
    from characters.media.audio import open_audio
    from characters.media.portrait import character_portrait
    from characters.media.video import VideoWriter, check_output

    started = time.perf_counter()
    check_output(out)
    who = load_character(character)
    if audio is not None:
        recording = open_audio(audio)
        if out.exists() and out.samefile(audio):
            raise UserError(f"cannot write {out}: it is the recording itself")
        source, seconds = recording.chunks(), recording.duration
    else:
        assert text is not None
        source, seconds = spoken_chunks(check_text(text), who.character.voice)
    from characters.generate.stream import open_stream
    from characters.media.mark import Mark
    from characters.model.config import load_model_config, portrait_note

    config = load_model_config(model)
    if note := portrait_note(config, who.character.kind, model):
        log.warning("%s", note)
    portrait = character_portrait(who, config.height, config.width, config.framing)
    with Waiting(f"loading the model {model}"):
        stream = open_stream(model=model, portrait=portrait, seed=seed, device=device)

    drawn = Mark(stream.height, stream.width) if mark else None
    statistics, told = Statistics(started), time.monotonic()
    with VideoWriter(out, stream.width, stream.height, stream.fps) as writer, _progress() as progress:
        task = progress.add_task(who.character.name, total=seconds)
        for chunk in stream.run(source):
            before = time.perf_counter()
            writer.write(drawn.on_rgb(chunk.frames) if drawn else chunk.frames, chunk.pcm)
            statistics.add(chunk, time.perf_counter() - before)
            progress.update(task, completed=statistics.seconds)
            if progress.disable and time.monotonic() - told >= PLAIN_SECONDS:
                told = time.monotonic()
                of = f" of about {seconds:.0f}" if seconds else ""
                click.echo(f"{statistics.seconds:.1f}{of} s of video", err=True)
        progress.update(task, total=statistics.seconds)
    statistics.show(out)


def check_text(text: str) -> str:
    """The text without surrounding space. Raises UserError if it has nothing to say, or is too long."""
    text = text.strip()
    if not any(c.isalnum() for c in text):
        raise UserError("--text has nothing in it to say" if text else "--text is empty")
    if len(text) > MAX_TEXT:
        raise UserError(f"--text has {len(text):,} characters; at most {MAX_TEXT:,}")
    return text


def spoken_chunks(text: str, voice: Voice) -> tuple[Iterator[np.ndarray], float]:
    """Speak a text, each sentence when it is needed: (float32 [4000] chunks, seconds in all, estimated)."""
    import numpy as np

    from characters.chunk import SAMPLE_RATE, rechunk
    from characters.speech import open_voice

    engine = open_voice(voice.engine)

    def blocks() -> Iterator[np.ndarray]:
        yield np.zeros(int(LEAD_IN * SAMPLE_RATE), np.float32)
        spoken = False
        for speech in engine.speak(text, speed=voice.speed, pitch=voice.pitch):
            spoken = spoken or len(speech.pcm) > 0
            yield speech.pcm
        if not spoken:
            raise UserError(f"the voice {voice.engine!r} found nothing in --text that it can say")
        yield np.zeros(int(TAIL * SAMPLE_RATE), np.float32)

    return rechunk(blocks()), LEAD_IN + len(text) / TEXT_RATE / voice.speed + TAIL


class Statistics:
    """How long a run took: one float for each chunk and stage."""

    def __init__(self, started: float) -> None:
        """`started`: time.perf_counter() when the program began its work."""
        self.started = started
        self.first: float | None = None
        self.count = self.samples = 0
        self.stages: dict[str, array[float]] = {}

    @property
    def seconds(self) -> float:
        """Seconds of video so far."""
        from characters.chunk import SAMPLE_RATE

        return self.samples / SAMPLE_RATE

    def add(self, chunk: Chunk, encode: float) -> None:
        """Add one chunk; `encode` is the seconds that writing it took."""
        if self.first is None:
            self.first = time.perf_counter()
        self.count += 1
        self.samples += len(chunk.pcm)
        for stage, seconds in (chunk.timings | {"encode": encode}).items():
            self.stages.setdefault(stage, array("f")).append(seconds)

    def show(self, out: Path) -> None:
        """Print the table."""
        import numpy as np

        from characters.console import show_table

        assert self.first is not None
        rows = []
        for stage, values in self.stages.items():
            median, p99 = np.percentile(np.asarray(values) * 1e3, [50, 99])
            rows.append((stage, f"{median:.1f}", f"{p99:.1f}"))
        show_table(("stage", "median ms", "p99 ms"), rows, right=(1, 2))
        spent = time.perf_counter() - self.first
        # Without the first chunk, which includes the start-up.
        factor = f"{spent / (self.seconds * (self.count - 1) / self.count):.2f}" if self.count > 1 else "-"
        click.echo(
            f"{self.count} chunks, {self.seconds:.1f} s of video; first frame after {self.first - self.started:.1f} s; "
            f"real-time factor {factor} (below 1 is faster than real time)"
        )
        click.echo(out)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from characters.console import Forgiving

    console = Console(file=cast("TextIO", Forgiving(sys.stderr)))
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.1f} s of video"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
