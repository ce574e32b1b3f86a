"""The whole bridge with its real parts, driven by synthesised speech in simulated time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from actors.voice.config import LlmConfig, VoiceConfig
from actors.voice.events import (
    Backchannel,
    Cancelled,
    Interrupted,
    ReplyAudio,
    ReplyHeard,
    ReplyMade,
    ReplyStarted,
    ReplyText,
    TurnDone,
    UserStartedSpeaking,
    UserTurn,
    VoiceError,
)
from actors.voice.llm import OpenAiModel
from actors.voice.parts import Parts
from actors.voice.protocols import Message, Tool, ToolCall, Transcript
from characters.chunk import SAMPLE_RATE
from characters.errors import UserError
from tests.actors.voice import fake_server
from tests.actors.voice.driver import BLOCK, Driver
from tests.actors.voice.sounds import burst, cough, join, noise, say, to_hearing_rate

MakeParts = Callable[..., Parts]
LONG = (
    "Well, here is a rather long story about a lighthouse by the sea. It stood there for years. Nobody came. The end."
)


class Scripted:
    """Says the same each time; notes what it was shown, and whether it was cancelled."""

    def __init__(self, text: str = LONG, delay: float = 0.0) -> None:
        self.text, self.delay = text, delay
        self.seen: list[list[Message]] = []
        self.cancelled = 0

    async def warm(self) -> None: ...

    async def stream(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> AsyncIterator[str | ToolCall]:
        self.seen.append(list(messages))
        try:
            await asyncio.sleep(self.delay)
            for word in self.text.split(" "):
                yield word + " "
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise


def run(scenario: Callable[[], object]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))  # type: ignore[arg-type]


async def started(parts: Parts, config: VoiceConfig | None = None, **options: object) -> Driver:
    driver = Driver(parts, config, **options)
    await driver.bridge.start()
    await driver.quiet(0.4)
    return driver


async def until_speaking(driver: Driver, seconds: float = 0.8) -> None:
    """Waits for the reply's first sound and `seconds` more."""
    await driver.wait_for(TurnDone)
    await driver.quiet(seconds)


def test_questions_are_answered(make_parts: MakeParts, loaded: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        ("What is your name?", "espeak:en-us", "leila"),
        ("How much is seven times eight?", "hibari", "fifty-six"),
        ("My name is Oliver.", "hibari", "oliver"),
        ("What is my name?", "espeak:en-us", "oliver"),
        ("Are you a real person?", "flite:slt", "open source"),
        ("Can you tell me a joke?", "flite:rms", "?"),
    ]
    traces = []
    lag = 0.0

    async def heartbeat() -> None:
        nonlocal lag
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.005)
            lag = max(lag, loop.time() - before - 0.005)

    async def scenario() -> None:
        driver = await started(make_parts())
        beat = asyncio.create_task(heartbeat())
        for question, engine, answer in asked:
            await driver.hear(join(say(question, engine)))
            traces.append((await driver.wait_for(TurnDone)).trace)
            heard = await driver.wait_for(ReplyHeard)
            assert answer in heard.text.lower()
            await driver.quiet(0.3)
        # What was played says what the events say.
        played = np.concatenate(driver.player.heard)[: 3 * SAMPLE_RATE]
        assert (
            "name is" in loaded.stt.transcribe(to_hearing_rate(played)).text.lower()
            or "leila" in driver.of(ReplyHeard)[0].text.lower()
        )
        assert [m.role for m in driver.bridge.history] == ["user", "assistant"] * len(asked)
        assert [m.text for m in driver.bridge.history[1::2]] == [h.text for h in driver.of(ReplyHeard)]
        beat.cancel()
        await driver.bridge.close()

    run(scenario)
    stages = ("stt_done", "decided", "first_token", "first_pcm", "first_heard")
    with capsys.disabled():
        print(f"\nturns, ms after the end of the user's voice ({len(traces)} turns):  median   max")
        for stage in stages:
            values = [(trace.stamps()[stage] - trace.stamps()["speech_end"]) * 1000 for trace in traces]
            print(f"  {stage:<56}{np.median(values):6.0f}{max(values):6.0f}")
        print(f"  longest wait of the event loop: {lag * 1000:.0f} ms")
    for trace in traces:
        stamps = list(trace.stamps().values())
        assert stamps == sorted(stamps) and len(stamps) == 7
    pcm = [trace.stamps()["first_pcm"] - trace.stamps()["speech_end"] for trace in traces]
    assert np.median(pcm) < 1.3


def test_barge_in(make_parts: MakeParts, capsys: pytest.CaptureFixture[str]) -> None:
    decided, model = [], Scripted()
    remarks = [("No, wait.", "espeak:en-us"), ("What is your name?", "hibari"), ("Can I ask you?", "flite:rms")]

    async def scenario() -> None:
        driver = await started(make_parts(model))
        driver.bridge.push_text("Tell me a story.")
        for trial in range(12):
            await until_speaking(driver, 0.4 + 0.037 * trial)
            response_id = driver.bridge.response_id
            remark, engine = remarks[trial % len(remarks)]
            begin = driver.clock()
            await driver.hear(join(say(remark, engine)))
            cancelled = driver.of(Cancelled)[-1]
            assert cancelled.response_id == response_id
            decided.append(cancelled.time - begin)
            if len(driver.of(Interrupted)) <= trial:
                await driver.wait_for(Interrupted)
            interrupted = driver.of(Interrupted)[-1]
            assert interrupted.response_id == response_id
            spoken = " ".join(LONG.split())
            assert spoken.startswith(interrupted.heard_text) and interrupted.heard_text != spoken
            late = [e for t, e in driver.events if isinstance(e, ReplyAudio) and t > cancelled.time]
            assert all(e.response_id > response_id for e in late)
            # What the model is told it said is what was played, to the word.
            said = [m.text for m in driver.bridge.history if m.role == "assistant"]
            assert said[-1] == interrupted.heard_text
        await driver.bridge.close()

    run(scenario)
    with capsys.disabled():
        print(
            f"\nbarge-in decided after the user's first sound, {len(decided)} trials: "
            f"median {np.median(decided) * 1000:.0f}, p95 {np.percentile(decided, 95) * 1000:.0f} ms"
        )
    assert np.percentile(decided, 95) <= 0.150


def test_what_was_heard_is_what_was_played(make_parts: MakeParts) -> None:
    """The words remembered end where the sound ended, to within a word."""

    async def scenario() -> None:
        driver = await started(make_parts(Scripted()))
        driver.bridge.push_text("Tell me a story.")
        await until_speaking(driver, 2.0)
        audio = driver.of(ReplyAudio)
        played = driver.player.played
        driver.bridge.push_text("Stop.")
        words = [w for a in audio for w in a.words]
        count = len(driver.of(Interrupted)[-1].heard_text.split())
        assert 3 <= count < len(words)
        assert words[count - 1].start < played and words[count].end > played
        # A report that was on its way says that one more word got out.
        driver.bridge.report_played(audio[0].response_id, words[count].end)
        assert len(driver.bridge.history[1].text.split()) == count + 1
        await driver.bridge.close()

    run(scenario)


@pytest.mark.parametrize(
    ("sound", "yields"),
    [
        (cough(), False),
        (burst(60, 100, 1500), False),
        (noise(1.5, 0.1), False),
        (say("mm-hm", "hibari"), True),
        (say("uh-huh", "espeak:en-us"), True),
        (say("okay", "hibari"), True),
        (say("yeah", "espeak:en-us"), True),
    ],
    ids=["cough", "knock", "noise", "mm-hm", "uh-huh", "okay", "yeah"],
)
def test_backchannels_do_not_cut_the_character_off(make_parts: MakeParts, sound: np.ndarray, yields: bool) -> None:
    async def scenario() -> None:
        model = Scripted()
        driver = await started(make_parts(model))
        driver.bridge.push_text("Tell me a story.")
        await until_speaking(driver)
        await driver.hear(join(sound))
        heard = await driver.wait_for(ReplyHeard)
        assert heard.text == " ".join(LONG.split()) and driver.of(Interrupted) == [] and model.cancelled == 0
        assert len(driver.of(UserTurn)) == 1 and len(driver.bridge.history) == 2
        assert bool(driver.of(Cancelled)) is yields
        if yields:
            assert len(driver.of(Backchannel)) == 1
            old, new = driver.of(ReplyStarted)
            assert new.resumes == old.response_id
            pause = [t for t, e in driver.events if isinstance(e, ReplyStarted)][1] - driver.of(Cancelled)[0].time
            assert pause < 1.5
        await driver.bridge.close()

    run(scenario)


def test_yes_at_the_end_of_a_question_is_an_answer(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        driver = await started(make_parts(Scripted("Shall I go on?")))
        driver.bridge.push_text("Hello.")
        await driver.wait_for(TurnDone)
        made = driver.of(ReplyMade)[-1].samples
        await driver.quiet(made / SAMPLE_RATE - 0.5)
        await driver.hear(join(say("Yes, please.")))
        assert (await driver.wait_for(UserTurn)).text.lower().startswith("yes")
        await driver.bridge.close()

    run(scenario)


def test_speaking_on_before_the_first_word(make_parts: MakeParts) -> None:
    """Nothing was heard of the reply, so nothing is remembered of it, and both remarks are one."""

    async def scenario() -> None:
        model = Scripted(delay=0.5)
        driver = await started(make_parts(model))
        await driver.hear(join(say("What is your name?", "hibari")))
        await driver.wait_for(UserTurn)
        await driver.hear(join(say("Can you tell me a joke?", "hibari")))
        await driver.wait_for(UserTurn)
        assert driver.of(Interrupted)[0].heard_text == "" and driver.of(ReplyAudio) == []
        assert model.cancelled == 1
        await driver.wait_for(TurnDone)
        assert [m.text for m in model.seen[-1][1:]] == ["What is your name? Can you tell me a joke?"]
        await driver.bridge.close()

    run(scenario)


def test_a_cough_before_the_first_word_changes_nothing(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        driver = await started(make_parts(Scripted(delay=0.4)))
        driver.bridge.push_text("Hello.")
        await driver.hear(join(cough(), noise(0.1)))
        heard = await driver.wait_for(ReplyHeard)
        assert heard.text == " ".join(LONG.split())
        await driver.bridge.close()

    run(scenario)


def test_interrupting_again_and_again(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        model = Scripted()
        driver = await started(make_parts(model))
        for number in range(20):
            driver.bridge.push_text(f"Question {number}")
            await driver.quiet(0.02 * (number % 4))
        heard = await driver.wait_for(ReplyHeard)
        assert heard.response_id == driver.bridge.response_id == 20
        assert len(driver.of(Interrupted)) == 19 and len(driver.of(Cancelled)) == 19
        started_ids = [e.response_id for e in driver.of(ReplyStarted)]
        assert started_ids == sorted(set(started_ids))
        await driver.bridge.close()

    run(scenario)


def test_a_pause_for_thought_is_no_end(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        driver = await started(make_parts())
        await driver.hear(join(say("My favourite colour is,"), noise(0.8), say("dark green.")))
        turn = await driver.wait_for(UserTurn)
        assert "green" in turn.text and "favorite" in turn.text.replace("favourite", "favorite")
        assert len(driver.of(UserTurn)) == 1 and len(driver.of(UserStartedSpeaking)) == 1
        await driver.bridge.close()

    run(scenario)


def test_a_long_monologue_is_heard_whole(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        driver = await started(make_parts(Scripted("I see.")))
        sentence = say("I went to the market and I bought some apples and then I walked home.", "hibari")
        first, last = say("The story begins in winter.", "hibari"), say("And that was the end of my holiday.", "hibari")
        gap = np.zeros(SAMPLE_RATE // 10, np.float32)
        await driver.hear(join(first, *[gap, sentence] * 8, gap, last))
        turn = await driver.wait_for(UserTurn)
        assert "winter" in turn.text and "holiday" in turn.text and len(turn.text.split()) > 90
        await driver.bridge.close()

    run(scenario)


@pytest.mark.parametrize("level", [0.0, 0.002, 0.2], ids=["digital silence", "quiet room", "loud noise"])
def test_minutes_without_speech(make_parts: MakeParts, level: float) -> None:
    async def scenario() -> None:
        driver = await started(make_parts())
        threads = threading.active_count()
        for _ in range(3):
            await driver.hear(noise(60, level))
        assert driver.of(UserTurn) == [] and driver.bridge.history == [] and driver.of(ReplyStarted) == []
        assert threading.active_count() <= threads + 2
        await driver.hear(join(say("What is your name?", "hibari")))
        assert "Leila" in (await driver.wait_for(ReplyHeard)).text
        await driver.bridge.close()

    run(scenario)


def test_a_muted_microphone_ends_the_turn(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        driver = await started(make_parts())
        await driver.hear(join(say("What is your name?")))
        for _ in range(60):  # no more sound comes
            await asyncio.sleep(0.05)
            if driver.of(UserTurn):
                break
        assert driver.of(UserTurn)
        await driver.bridge.close()

    run(scenario)


def test_typed_text_and_greeting(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        driver = await started(make_parts())
        driver.bridge.greet()
        greeting = await driver.wait_for(ReplyHeard)
        assert "I'm Leila" in greeting.text and driver.bridge.history == [Message("assistant", greeting.text)]
        driver.bridge.push_text("   ")
        driver.bridge.push_text("What is\nyour name?")
        turn = driver.of(UserTurn)[-1]
        assert turn.typed and turn.text == "What is your name?"
        heard = await driver.wait_for(ReplyHeard)
        assert "Leila" in heard.text
        # Captions grow with the voice and end with the whole.
        captions = [e for e in driver.of(ReplyText) if e.response_id == heard.response_id]
        assert len(captions) > 3 and captions[-1].final and captions[-1].text == heard.text
        assert all(heard.text.startswith(c.text) for c in captions)
        driver.bridge.push_text("x" * 100_000)
        assert len(driver.of(UserTurn)[-1].text) <= 4000
        await driver.bridge.close()
        assert len(asyncio.all_tasks()) <= 2  # this scenario and its time limit
        for thread in [t for t in threading.enumerate() if t.name.startswith(("stt", "tts"))]:
            thread.join(2)
            assert not thread.is_alive()

    run(scenario)


def test_speech_is_made_only_a_little_ahead(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        driver = await started(make_parts(Scripted("This is a sentence of the usual length, more or less. " * 40)))
        driver.bridge.push_text("Talk.")
        most = 0
        for _ in range(300):
            await driver.quiet(BLOCK / SAMPLE_RATE)
            most = max(most, len(driver.player.sound))
        assert 1 < most / SAMPLE_RATE < 4 + 5
        await driver.bridge.close()

    run(scenario)


def test_a_failing_model_becomes_an_apology(make_parts: MakeParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    async def scenario() -> None:
        with fake_server.serving() as server:
            warm = fake_server.text("Hello.")
            server.answers = [warm, fake_server.error(500), fake_server.text(""), fake_server.text("I am", " fine.")]
            config = VoiceConfig(llm=LlmConfig(engine="openai", model="m", base_url=server.url))
            driver = await started(make_parts(OpenAiModel(config.llm)), config)
            for _ in range(2):
                driver.bridge.push_text("How are you?")
                assert "sorry" in (await driver.wait_for(ReplyHeard)).text
            assert [p.stage for p in driver.of(VoiceError)] == ["reply", "reply"]
            driver.bridge.push_text("And now?")
            assert (await driver.wait_for(ReplyHeard)).text == "I am fine."
            assert server.requests[-1]["messages"][0]["content"].startswith("You are Leila")
            await driver.bridge.close()

    run(scenario)


def test_a_failing_ear_and_a_failing_voice(make_parts: MakeParts) -> None:
    class Deaf:
        def transcribe(self, pcm: np.ndarray) -> Transcript:
            if len(pcm) != 16_000:  # not the warming up
                raise UserError("the server is gone")
            return Transcript("")

    class Mute:
        def say(self, text: str) -> None:
            raise RuntimeError("no voice")

    async def scenario() -> None:
        driver = await started(replace(make_parts(), stt=Deaf()))
        await driver.hear(join(say("What is your name?")))
        assert "my ears" in (await driver.wait_for(ReplyHeard)).text
        assert driver.of(VoiceError)[0] == VoiceError("stt", "the server is gone")
        await driver.bridge.close()

        driver = Driver(replace(make_parts(), speaker=Mute()))
        driver.bridge.push_text("Hello.")
        await driver.wait_for(VoiceError, count=2)
        await driver.wait_for(ReplyHeard) if not driver.of(ReplyHeard) else None
        driver.bridge.push_text("Hello?")
        assert driver.bridge.response_id == 2
        await driver.bridge.close()

    run(scenario)


def test_bad_sound_is_refused_and_nothing_breaks(make_parts: MakeParts) -> None:
    async def scenario() -> None:
        driver = await started(make_parts())
        for wrong in (np.zeros((1, 2, 3), np.float32), np.zeros(10, np.int64)):
            with pytest.raises(UserError):
                driver.bridge.push_audio(wrong, 48_000)
        with pytest.raises(UserError):
            driver.bridge.push_audio(np.zeros(10, np.int16), 12)
        driver.bridge.push_audio(np.zeros(0, np.int16), 48_000)
        driver.bridge.push_audio(np.full(4800, np.nan, np.float32), 48_000)
        driver.bridge.report_played(99, 10**9)
        await driver.hear(join(say("What is your name?", "hibari")))
        assert "Leila" in (await driver.wait_for(ReplyHeard)).text
        await driver.bridge.close()
        driver.bridge.push_audio(np.zeros(480, np.int16), 48_000)
        driver.bridge.push_text("after the end")

    run(scenario)
