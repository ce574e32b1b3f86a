"""What a user in the room gets, measured with the real media server, processes and model.

    python -m deploy.bench.room
    python -m deploy.bench.room --profile h200 --minutes 2 --trials 20 --turns 8

One session after the other: a conversation in writing, while marks in picture and sound are compared at the user's end;
spoken questions; and a user who speaks up, while the character talks, twice in a row, or before its answer has begun.
All times are of this machine's one clock. The web page and Serve take no part.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from actors.pipeline.loop import LoopRole
from actors.pipeline.session import RoomAddress, SessionSpec
from actors.pipeline.topology import StageSpec, Topology, load_profile, plan_topology
from actors.pipeline.trace import Trace, percentile
from actors.roles.publisher import RoomPublisher
from actors.room import talking
from actors.room.livekit import LivekitRoom
from characters.character import load_character
from characters.chunk import SAMPLE_RATE
from characters.media.portrait import character_portrait
from deploy.cli.up import ENVIRONMENT
from deploy.load.talk import QUESTIONS, SPEECH, quiet, speech
from deploy.load.user import User
from deploy.serving.livekit_server import LivekitServer
from deploy.serving.settings import LOOPBACK, LivekitAccess, free_ports
from deploy.serving.tokens import character_token, user_token

CHARACTER = "ruby"
USER = "ada"
TALKING = "actors.room.talking:build_roles"
INTERRUPTION = "Wait, tell me, what can you do for me?"

# Marks: about every other second the corner of one frame is white, and the sound under it is a pure tone.
MARK_FRAMES = 48
CORNER, DARK, WHITE = 32, 16, 235
TONE_HZ, TONE_LEVEL = 6_000, 0.5
_PROBE = 120  # samples in which the tone is looked for: 5 ms, 30 periods
_PAIR_SECONDS = 0.5

_PATIENCE = 60.0


OnFrame = Callable[[float, np.ndarray], None]


def ignore(at: float, i420: np.ndarray) -> None:
    """See `User`."""


class MarkedRoom(LivekitRoom):
    """Marks what it is given. The publisher gives each frame right after its sound."""

    _count = 0

    def capture_audio(self, pcm: np.ndarray) -> None:
        """See `Room.capture_audio`."""
        self._count += 1
        if self._count % MARK_FRAMES == 0:
            pcm = TONE_LEVEL * np.sin(2 * np.pi * TONE_HZ * np.arange(len(pcm)) / SAMPLE_RATE)
        super().capture_audio(pcm)

    def capture_video(self, frame: np.ndarray, timestamp_us: int, number: int) -> None:
        """See `Room.capture_video`."""
        frame = frame.copy()
        frame[:CORNER, :CORNER] = WHITE if self._count % MARK_FRAMES == 0 else DARK
        super().capture_video(frame, timestamp_us, number)


def marked_roles(topology: Topology, stage: StageSpec) -> dict[str, LoopRole]:
    """As `talking.build_roles`, with a room that marks."""
    built = talking.build_roles(topology, stage)
    form = topology.model.height, topology.model.width, topology.model.clock.fps
    for role in built.values():
        if isinstance(role, RoomPublisher):
            role.join = lambda session: MarkedRoom(session.room, *form)
    return built


@dataclass
class Eye:
    """Sees the marks. `corner`: when a frame came, and how bright its corner was."""

    corner: list[tuple[float, float]] = field(default_factory=list)

    def look(self, at: float, i420: np.ndarray) -> None:
        """See `User`."""
        inner = slice(CORNER // 4, CORNER * 3 // 4)  # the codec blurs the edges
        self.corner.append((at, float(i420[inner, inner].mean())))

    def marks(self) -> list[float]:
        """When a white corner came."""
        middle = (DARK + WHITE) / 2
        return [at for (_, before), (at, luma) in pairwise(self.corner) if before < middle < luma]


def tones(sound: Iterable[tuple[float, np.ndarray]]) -> list[float]:
    """When the tone began; a block of sound is there when its last sample is."""
    probe = np.exp(-2j * np.pi * TONE_HZ * np.arange(_PROBE) / SAMPLE_RATE) * 2 / _PROBE
    found: list[float] = []
    for at, pcm in sound:
        for start in range(0, len(pcm) - _PROBE + 1, _PROBE):
            begin = at - (len(pcm) - start) / SAMPLE_RATE
            if abs(pcm[start : start + _PROBE] @ probe) > TONE_LEVEL / 4:
                if not found or begin - found[-1] > _PAIR_SECONDS:
                    found.append(begin)
                break
    return found


def skews(seen: list[float], heard: list[float]) -> list[tuple[float, float]]:
    """(when, how long the picture came after the sound), seconds, of the marks that came in both."""
    found = []
    for at in seen:
        nearest = min(heard, key=lambda other: abs(other - at), default=np.inf)
        if abs(nearest - at) < _PAIR_SECONDS:
            found.append((at, at - nearest))
    return found


class Bench:
    """One media server, one Ray, one session at a time.

    Args:
        profile: name or path of a deploy profile.
    """

    def __init__(self, profile: str) -> None:
        import ray

        self._topology = plan_topology(load_profile(profile))
        os.environ.update(ENVIRONMENT | {"RAY_AUTH_MODE": "disabled"})
        ray.init(
            "local",  # not one that somebody else has started here
            _node_ip_address=LOOPBACK,
            num_cpus=max(4, os.cpu_count() or 1),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=500 << 20,
        )
        port = free_ports(17800)
        self._access = LivekitAccess(f"ws://{LOOPBACK}:{port}", "key", "s" * 32, own=True, port=port)
        self._server = LivekitServer(self._access)
        self._character = load_character(CHARACTER)

    def close(self) -> None:
        """End everything."""
        import ray

        self._server.stop()
        ray.shutdown()

    def meet(
        self, story: Callable[[User], Awaitable[None]], *, on_frame: OnFrame = ignore, factory: str = TALKING
    ) -> tuple[User, Trace]:
        """Play a story with a user whom the character has greeted; the user afterwards, and the session's trace."""
        from actors.pipeline.gang import Gang

        model, room, character = self._topology.model, f"bench-{time.monotonic_ns()}", self._character.character
        token = character_token(self._access, room, CHARACTER, character.name)
        portrait = character_portrait(self._character, model.height, model.width, model.framing)
        gang = Gang(self._topology, factory=factory, health_timeout=30.0)

        async def play() -> User:
            user = User(on_frame)
            await user.join(self._access.url, user_token(self._access, room, USER, "Ada"))
            try:
                await user.until(lambda: user.said_by("character"), "no greeting", _PATIENCE)
                await quiet(user)
                await story(user)
            finally:
                await user.leave()
            return user

        try:
            gang.start(SessionSpec(portrait, 0, RoomAddress("livekit", self._access.url, token), character))
            return asyncio.run(play()), gang.trace()
        finally:
            gang.stop()


def table(title: str, rows: dict[str, list[float]], unit: str = "ms", scale: float = 1e3) -> None:
    """Median, 95th percentile and largest of each row."""
    print(f"\n{title}\n{'':28}{'n':>6}{'median':>12}{'p95':>12}{'max':>12}")
    for name, values in rows.items():
        if values:
            figures = (statistics.median(values), percentile(values, 95), max(values))
            print(f"{name:28}{len(values):6}" + "".join(f"{scale * f:9.1f} {unit}" for f in figures))


def measure_marks(bench: Bench, minutes: float) -> None:
    """Frames a second and skew, in a conversation in writing."""
    eye = Eye()
    began = 0.0

    async def story(user: User) -> None:
        nonlocal began
        began, seconds = time.monotonic(), 60 * minutes
        while (left := began + seconds - time.monotonic()) > 0:
            await user.type(random.choice(QUESTIONS))
            await asyncio.sleep(min(15.0, left))

    user, trace = bench.meet(story, on_frame=eye.look, factory="deploy.bench.room:marked_roles")
    ended = eye.corner[-1][0]
    frames = [at for at, _ in eye.corner if at >= began]
    gaps = [b - a for a, b in pairwise(frames)]
    found = skews([at for at in eye.marks() if at >= began], tones(user.seen.sound))
    values = [skew for _, skew in found]
    print(f"\npicture: {len(frames) / (ended - began):.2f} fps over {ended - began:.0f} s")
    table("picture and sound, at the user", {"between frames": gaps, "|skew|": [abs(v) for v in values]})
    if len(values) >= 8:
        slope = np.polyfit([at - began for at, _ in found], values, 1)[0]
        quarter = len(values) // 4
        first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        print(
            f"picture after sound: {1e3 * statistics.median(values):+.1f} ms; first quarter {1e3 * first:+.1f} ms, "
            f"last {1e3 * last:+.1f} ms; growth {1e3 * 60 * slope:+.2f} ms a minute"
        )
    seconds = trace.seconds()
    table("a chunk", seconds)


def measure_turns(bench: Bench, turns: int) -> None:
    """From the end of a spoken question to the first sound and the first frame of the answer."""
    ends: list[float] = []
    heard: list[float] = []

    async def story(user: User) -> None:
        for turn in range(turns):
            user.say(speech(QUESTIONS[turn % len(QUESTIONS)]))
            end = await user.spoken()
            heard.append(await user.until(lambda end=end: user.loud(end, SPEECH), "no answer", _PATIENCE) - end)
            ends.append(end)
            await quiet(user)

    _, trace = bench.meet(story)
    answered = [dict(trace.stamps(turn)) for turn in list(trace.turns)[-turns:]]
    rows = {"to the first sound": heard}
    rows["to the first frame"] = [a["rendered"] - end for a, end in zip(answered, ends, strict=True) if "rendered" in a]
    rows["  of it the picture's share"] = [a["rendered"] - a["first_pcm"] for a in answered if "rendered" in a]
    table("a turn, from the end of the user's speech to the user", rows)
    table("its steps", {name: values[-turns:] for name, values in trace.turn_seconds().items()})


def measure_interruptions(bench: Bench, trials: int) -> None:
    """From the onset of the user's voice to the last of the character's."""
    pcm = speech(INTERRUPTION)
    silent: dict[str, list[float]] = {"while it speaks": [], "twice in a row": [], "before it speaks": []}
    kinds = ["while it speaks", "twice in a row", "while it speaks", "before it speaks"]

    async def speak_up(user: User, kind: str) -> None:
        user.say(pcm)
        end = await user.spoken()
        onset = user.said_from
        # Whatever is heard until an answer to this can have begun was said before.
        await asyncio.sleep(max(0.0, end + 0.1 - time.monotonic()))
        last = max((at for at, s in user.seen.sound if at >= onset and np.abs(s).max() > SPEECH), default=onset)
        silent[kind].append(last - onset)

    async def story(user: User) -> None:
        user.say(pcm)
        await user.spoken()
        for trial in range(trials):
            kind = kinds[trial % len(kinds)]
            if kind == "before it speaks":
                await asyncio.sleep(0.25)
            else:
                since = user.said_until
                await user.until(lambda since=since: user.loud(since + 0.1, SPEECH), "no answer", _PATIENCE)
                await asyncio.sleep(0.05 if kind == "twice in a row" else random.uniform(0.5, 2.0))
            await speak_up(user, kind)

    bench.meet(story)
    table(
        "silence after the user speaks up", silent | {"all": [value for values in silent.values() for value in values]}
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="laptop", help="name or path of a deploy profile")
    parser.add_argument("--minutes", type=float, default=2.0, help="of picture and sound; 0 leaves them out")
    parser.add_argument("--turns", type=int, default=8, help="spoken questions")
    parser.add_argument("--trials", type=int, default=20, help="interruptions")
    arguments = parser.parse_args()
    bench = Bench(arguments.profile)
    try:
        print(f"profile {arguments.profile}, {os.cpu_count()} cores")
        if arguments.minutes:
            measure_marks(bench, arguments.minutes)
        if arguments.turns:
            measure_turns(bench, arguments.turns)
        if arguments.trials:
            measure_interruptions(bench, arguments.trials)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
