"""A window model's chunk on one GPU: time of all of it and of its parts, ceiling, memory, eager baseline, sessions.

Each finding is reported as soon as it is known, so that a run that fails or is stopped loses none.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from characters.bench.chunk_baseline import EagerWindow
from characters.bench.decode import Convolutions, Report
from characters.bench.step import forget
from characters.generate.networks import Networks, load_networks
from characters.generate.window import WindowGenerator
from characters.generate.window_maker import WindowMaker
from characters.model.config import AutoencoderConfig, ModelConfig, SamplerConfig
from characters.model.frame_decoder import build_autoencoder
from characters.model.plan import block_parameters
from characters.model.taehv import TinyVae
from characters.model.wan_vae.stream import fastest_convolutions
from characters.model.wan_vae.vae import WanVae
from characters.model.wav2vec2 import RATE
from characters.model.window_sampler import WindowSampler
from kernels.bench.floor import measure_floor
from kernels.bench.timing import Timing, capture, sustained
from kernels.lab_match import lab_statistics

# Chunks that the check goes through, every how many it compares, and the picture's side there: float32 is slow.
CHECKED, COMPARED, SIDE = 64, 8, 128
# Seconds that sessions keep time for.
SPAN = 12.0
# Untimed and timed chunks of the baseline.
WARM, TIMED = 2, 5
VARIANTS = {"float32": (torch.float32, "bf16"), "bf16": (torch.bfloat16, "bf16"), "fp8": (torch.bfloat16, "fp8")}


@dataclass(frozen=True)
class Job:
    """What is measured.

    Attributes:
        config: of a window model; weights are random.
        precision: of the DiT's blocks, "fp8" or "bf16".
        seconds: of each measurement.
        baseline: measure the eager window as well.
        sessions: numbers of sessions that are to keep time together, each measured for itself.
    """

    config: ModelConfig
    precision: str = "fp8"
    seconds: float = 4.0
    baseline: bool = True
    sessions: tuple[int, ...] = ()


class Session:
    """What a window is made of, without a generator around it.

    Args:
        networks: of the model.
        known: latents and colours of a portrait, see `WindowMaker.prepare`.
        seed: of sound and pictures.
    """

    def __init__(self, networks: Networks, known: tuple[Tensor, Tensor], seed: int = 0) -> None:
        config, device = networks.config, networks.device
        window = config.window
        assert window is not None
        generator = torch.Generator(device).manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device)

        self.reference, self.colours = known
        self.sound = 0.1 * random(1, round(window.heard * RATE))
        self.noise = random(WindowSampler(networks.dit).draws, *self.reference.shape)
        still = networks.picture(portrait(config, seed + 1)).permute(0, 2, 3, 1).float()
        self.history = (still + 0.02 * random(window.history, *still.shape[1:])).clamp(0, 1)


class Replayed:
    """All of a window, for `sustained` to replay: inputs copied, graph replayed."""

    def __init__(self, maker: WindowMaker, session: Session) -> None:
        self._maker, self._session = maker, session

    def replay(self) -> None:
        """Queue it."""
        maker, session = self._maker, self._session
        maker.make(session.sound, session.noise, session.history, maker.shown, session.reference, session.colours)


def portrait(config: ModelConfig, seed: int = 0) -> np.ndarray:
    """uint8 [H, W, 3]: random, smooth as pictures are, with colours of its own."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 8, 8, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, size=(config.height, config.width), mode="bicubic")[0]
    return (fine.clamp(0, 1).permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()


def with_passes(config: ModelConfig, passes: int) -> ModelConfig:
    """The model with so many passes a window: levels shifted by 5, with fresh noise, as FlashHead Pro has four."""
    levels = [1 - i / passes for i in range(passes)]
    steps = [5 * level / (1 + 4 * level) for level in levels]
    return replace(config, sampler=SamplerConfig(steps=steps, noise="fresh"))


def with_autoencoder(config: ModelConfig, name: str) -> ModelConfig:
    """The model with the Wan VAE ("wan") or taew2_1 ("tae")."""
    if name == "tae":
        return replace(config, autoencoder=AutoencoderConfig(tiny=True))
    return config


def pass_flops(config: ModelConfig) -> float:
    """Operations of one pass of the DiT: products and self-attention."""
    rows = config.tokens
    products = 2 * rows * (block_parameters(config.dit) - 2 * config.dit.dim**2)  # keys and values of conditions
    return config.dit.num_layers * (products + 4 * rows * rows * config.dit.dim)


@torch.inference_mode()
def run(job: Job, say: Callable[[str], None]) -> bool:
    """Measure a job on the current GPU; whether nothing failed.

    Args:
        job: what to measure.
        say: called with each finding.
    """
    report, device = Report(say), torch.device("cuda", torch.cuda.current_device())
    whole = _product(job, report, device)
    forget()
    if job.baseline:
        eager = report.attempt("the baseline", lambda: _baseline(job.config, device, say))
        if eager is not None and whole is not None:
            say(f"chunk {whole.ms:.1f} ms, eager {eager:.1f} ms: speed-up {eager / whole.ms:.2f} (goal 2.5)")
    return report.complete


def _product(job: Job, report: Report, device: torch.device) -> Timing | None:
    config, say, before = job.config, report.say, torch.cuda.memory_allocated(device)
    networks = load_networks(config, device, precision=job.precision, random_weights=True)
    weights, began = torch.cuda.memory_allocated(device) - before, time.perf_counter()
    maker = WindowMaker(networks)
    session = Session(networks, maker.prepare(networks.picture(portrait(config))))
    torch.cuda.synchronize()
    say(f"ready to go after {time.perf_counter() - began:.1f} s (calibration, convolutions tuned, capture)")
    assert maker.frames is not None
    own = sum(x.nbytes for x in (session.reference, session.noise, maker.frames)) + _shown_bytes(config)
    forget()
    say(
        f"memory: weights {weights / 1e9:.2f} GB, with the graph {torch.cuda.memory_reserved(device) / 1e9:.2f} GB"
        f" for all sessions of a process, and {own / 1e6:.0f} MB a session"
    )
    whole = report.time("chunk", lambda: sustained(Replayed(maker, session), job.seconds))
    parts = _parts(report, maker, session, job.seconds / 4)
    say("parts: " + ", ".join(f"{name} {part.ms:.2f}" for name, part in parts.items()) + " ms")
    if whole is not None:
        _ceiling(report, job, maker, session, whole)
    report.attempt("the generator", lambda: _generator(maker, job.seconds, say))
    for count in job.sessions:
        report.attempt(f"{count} sessions", lambda count=count: say(keep_time(maker, count, SPAN)))
    return whole


def _shown_bytes(config: ModelConfig) -> int:
    """Of a session's newest chunk in I420."""
    assert config.window is not None
    return config.window.fresh * config.height * config.width * 3 // 2


def _parts(report: Report, maker: WindowMaker, session: Session, seconds: float) -> dict[str, Timing]:
    """The parts of a window, each in a graph of its own on what the part before left."""
    found: dict[str, Timing] = {}
    made: dict[str, object] = {}

    def part(name: str, work: Callable[[], object]) -> None:
        def keep() -> None:
            made[name] = work()

        graph = report.attempt(f"capture of {name}", lambda: capture(keep))
        if graph is not None:
            timing = report.attempt(name, lambda: sustained(graph, seconds))
            if timing is not None:
                found[name] = timing

    part("history", lambda: maker.encode(session.history))
    part("ears", lambda: maker.hear(session.sound))
    given = session.noise, made.get("history"), maker.shown, session.reference
    part("DiT", lambda: maker.denoise(made["ears"], *given))  # type: ignore[arg-type]
    part("decode", lambda: maker.decode(made["DiT"]))  # type: ignore[arg-type]
    part("colour", lambda: maker.colour(*made["decode"], session.colours))  # type: ignore[misc]
    part("I420", lambda: maker.convert(made["colour"]))  # type: ignore[arg-type]
    return found


def _ceiling(report: Report, job: Job, maker: WindowMaker, session: Session, whole: Timing) -> None:
    """The chunk against its bare FP8 products, attention and convolutions, measured in the same run."""
    config, dit = job.config, job.config.dit
    rows, passes = config.tokens, len(config.sampler.steps)
    floor = report.attempt(
        "the floor",
        lambda: measure_floor(
            rows=rows,
            heads=dit.num_heads,
            context=1,
            layers=dit.num_layers,
            tokens=rows,
            dim=dit.dim,
            head_dim=dit.dim // dit.num_heads,
            ffn_dim=dit.ffn_dim,
            seconds=job.seconds / 4,
        ),
    )
    bare = report.attempt("the convolutions alone", lambda: _convolutions(maker, session, job.seconds / 4))
    if floor is None or bare is None:
        return
    flops = pass_flops(config)
    report.say(
        f"ceiling: {passes} x {floor.both.ms:.1f} ms bare products ({floor.products.ms:.1f}) and attention"
        f" ({floor.attention.ms:.1f}), {floor.both.teraflops(flops):.0f} TFLOP/s; convolutions {bare.ms:.1f} ms"
    )
    ceiling = passes * floor.both.ms + bare.ms
    report.say(f"share of the ceiling: {ceiling / whole.ms:.1%} ({ceiling:.1f} of {whole.ms:.1f} ms)")


def _convolutions(maker: WindowMaker, session: Session, seconds: float) -> Timing:
    """The convolutions of encoder and decoder with nothing between them."""
    recorder, latents = Convolutions(), session.reference
    with recorder:
        maker.encode(session.history)
        maker.decode(latents)

    def convolutions() -> None:
        with fastest_convolutions(torch.float16):
            recorder.run()

    return sustained(capture(convolutions), seconds)


def _generator(maker: WindowMaker, seconds: float, say: Callable[[str], None]) -> None:
    """Chunks of one session as the application makes them, one after another, and to the host."""
    generator, config = WindowGenerator(maker.networks, maker=maker), maker.networks.config
    generator.start(portrait(config, 1))
    times: list[float] = []
    heard = 0.1 * torch.randn(*generator.hearing.shape)
    while sum(times) < seconds or len(times) < 5:
        began = time.perf_counter()
        generator.generate(heard).cpu()
        times.append(time.perf_counter() - began)
    times = sorted(times[2:])
    say(
        f"generator, frames on the host: median {1e3 * statistics.median(times):.1f} ms, p99"
        f" {1e3 * times[int(0.99 * (len(times) - 1))]:.1f} ms; a chunk lasts {1e3 * generator.clock.seconds:.0f} ms"
    )


def keep_time(maker: WindowMaker, count: int, seconds: float) -> str:
    """Several sessions of one process for some seconds, a thread each, paced by the clock.

    A session has the sound of chunk i at (i + 1) chunks after its start; its frames must be there a chunk later.

    Returns:
        What came of it, in a line.
    """
    config = maker.networks.config
    generators = []
    for seed in range(count):
        generator = WindowGenerator(maker.networks, maker=maker)
        generator.start(portrait(config, seed), seed)
        generators.append(generator)
    chunk = generators[0].clock.seconds
    chunks = max(3, round(seconds / chunk))
    waits: list[list[float]] = [[] for _ in generators]
    start = time.perf_counter() + 0.2

    def talk(number: int) -> None:
        generator = generators[number]
        begin = start + chunk * number / count  # users don't come all at once
        heard = 0.1 * torch.randn(*generator.hearing.shape, generator=torch.Generator().manual_seed(number))
        for i in range(chunks):
            due = begin + i * chunk
            time.sleep(max(0.0, due - time.perf_counter()))
            generator.generate(heard).cpu()
            waits[number].append(time.perf_counter() - due)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sorted(wait for session in waits for wait in session[1:])
    late = sum(wait > chunk for wait in found)
    frames = generators[0].clock.frames
    behind = max(max(0.0, session[-1] - chunk) for session in waits)
    fps = chunks * frames / (chunks * chunk + behind)
    return (
        f"{count} sessions, {len(found)} chunks, {late} late: made after median {1e3 * statistics.median(found):.0f},"
        f" p99 {1e3 * found[int(0.99 * (len(found) - 1))]:.0f}, worst {1e3 * found[-1]:.0f} of {1e3 * chunk:.0f} ms;"
        f" slowest session {fps:.2f} fps"
    )


def _baseline(config: ModelConfig, device: torch.device, say: Callable[[str], None]) -> float:
    """Milliseconds of an eager window in bfloat16, median; its parts are reported."""
    networks = load_networks(config, device, random_weights=True)
    eager, picture = EagerWindow(networks, torch.bfloat16), networks.picture(portrait(config))
    assert config.window is not None and isinstance(networks.autoencoder, WanVae | TinyVae)
    still = networks.autoencoder.encode_clip(picture.expand(config.window.pixels, -1, -1, -1))
    session = Session(networks, (still.to(networks.dtype), lab_statistics(picture[0].permute(1, 2, 0))))
    times: dict[str, list[float]] = {}

    def part(name: str, work: Callable[[], Tensor]) -> Tensor:
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        made = work()
        torch.cuda.synchronize(device)
        times.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
        return made

    def window() -> None:
        before = part("history", lambda: eager.encode(session.history))
        tokens = part("ears", lambda: eager.hear(session.sound))
        latents = part("DiT", lambda: eager.denoise(tokens, session.noise, before, session.reference))
        signal = part("decode", lambda: eager.decode(latents))
        frames = part("colour", lambda: eager.colour(signal, session.colours))
        part("bytes", lambda: eager.convert(frames))

    whole = []
    for _ in range(WARM + TIMED):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        eager.window(session.sound, session.noise, session.history, session.reference, session.colours)
        torch.cuda.synchronize(device)
        whole.append((time.perf_counter() - began) * 1e3)
    for _ in range(TIMED):
        window()
    say(
        "eager, bfloat16, launch by launch: "
        + ", ".join(f"{name} {statistics.median(found):.1f}" for name, found in times.items())
        + " ms"
    )
    return statistics.median(whole[WARM:])


@torch.inference_mode()
def check(job: Job, say: Callable[[str], None], device: torch.device) -> None:
    """Go through chunks with ears and DiT in float32, bfloat16 and FP8, and compare their pictures and colours.

    Each goes on from its own history, so that errors can build up.

    Args:
        job: whose model is run, on pictures of `SIDE` pixels.
        say: called with each finding.
        device: where.
    """
    config = replace(job.config, height=SIDE, width=SIDE)
    found = {}
    for name in VARIANTS:
        began = time.perf_counter()
        found[name] = _stream(config, name, device)
        say(f"{name}: {CHECKED} chunks after {time.perf_counter() - began:.1f} s")
    say(f"{SIDE}x{SIDE}, {CHECKED} chunks, each stream on its own history; every {COMPARED}th chunk:")
    for name, other in (("bf16", "float32"), ("fp8", "float32"), ("fp8", "bf16")):
        errors = (_error(a, b) for a, b in zip(found[name].frames, found[other].frames, strict=True))
        say(f"  {name} against {other}, RMS of 255: " + " ".join(f"{error:.2f}" for error in errors))
    for name, stream in found.items():
        off = (stream.colours - stream.portrait).abs()
        say(
            f"  {name}, Lab of the shown frames less the portrait's, first / last 8 chunks: mean"
            f" {off[:8, 0].mean():.3f} / {off[-8:, 0].mean():.3f}, spread {off[:8, 1].mean():.3f} /"
            f" {off[-8:, 1].mean():.3f}"
        )


@dataclass(frozen=True)
class Stream:
    """What a stream of chunks looked like.

    Attributes:
        frames: [fresh, H, W, 3] in [0, 1] of every `COMPARED`th chunk, on the CPU.
        colours: [chunks, 2, 3], mean and spread in Lab of each chunk's frames; portrait: [2, 3].
    """

    frames: list[Tensor]
    colours: Tensor
    portrait: Tensor


def _stream(config: ModelConfig, name: str, device: torch.device) -> Stream:
    dtype, precision = VARIANTS[name]
    networks = load_networks(config, device, precision=precision, dtype=dtype, random_weights=True)
    # The autoencoder in the same precision for all: in float32, without TF32, its convolutions take minutes.
    networks = replace(networks, autoencoder=build_autoencoder(config, device, torch.bfloat16))
    generator = WindowGenerator(networks, i420=False)
    picture, random = portrait(config), torch.Generator().manual_seed(4)
    generator.start(picture, 5)
    frames, colours = [], []
    for i in range(CHECKED):
        made = generator.generate(0.1 * torch.randn(*generator.hearing.shape, generator=random)).float() / 255
        colours.append(torch.stack([lab_statistics(frame) for frame in made]).mean(0).cpu())
        if (i + 1) % COMPARED == 0:
            frames.append(made.cpu())
    known = lab_statistics(torch.from_numpy(picture).float() / 255)
    del generator, networks
    forget()
    return Stream(frames, torch.stack(colours), known)


def _error(a: Tensor, b: Tensor) -> float:
    return 255 * float((a - b).square().mean().sqrt())
