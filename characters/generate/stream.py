"""The single-process stream: speech in, chunks of video out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from characters.chunk import MEL_BINS, MEL_FRAMES_PER_CHUNK, SAMPLES_PER_CHUNK, Chunk
from characters.errors import UserError
from characters.generate.hearing import PAST_FRAMES, SILENCE, WINDOW_FRAMES, LogMel
from characters.generate.motion import LIVE_SWAY, IdleMotion
from characters.model.autoencoder import Autoencoder
from characters.model.checkpoint import WEIGHTS_FOLDER, load_weights
from characters.model.config import ModelConfig, load_model_config
from characters.model.dit import DiT
from characters.model.frame_decoder import open_decoder
from characters.model.graph import Graph
from characters.model.sampler import Sampler
from characters.model.wan_vae.vae import WanVae


class AudioWindow:
    """Cuts a growing signal into what each chunk hears: 24 mel frames before it, its own 16 and 8 after it."""

    def __init__(self) -> None:
        self._mel = LogMel()
        self._frames = np.full((PAST_FRAMES, MEL_BINS), SILENCE, np.float32)

    def push(self, pcm: np.ndarray) -> None:
        """Append float32 [n] samples."""
        self._frames = np.concatenate((self._frames, self._mel.push(pcm)))

    def pop(self) -> np.ndarray | None:
        """float32 [48, 80], the window of the next chunk, or None until its look-ahead has been heard."""
        if len(self._frames) < WINDOW_FRAMES:
            return None
        window = self._frames[:WINDOW_FRAMES]
        self._frames = self._frames[MEL_FRAMES_PER_CHUNK:]
        return window


class CharacterModel:
    """The networks of one model on one device, shared by every stream that runs there.

    Args:
        config: a checked model config.
        dit, autoencoder: in eval mode, on one device. Where no chunk is generated the DiT may be on the meta device.

    Attributes:
        dtype: of the DiT and of latents.
    """

    def __init__(self, config: ModelConfig, dit: DiT, autoencoder: Autoencoder | WanVae) -> None:
        self.config, self.dit, self.autoencoder = config, dit, autoencoder
        self.device, self.dtype = next(autoencoder.parameters()).device, next(dit.parameters()).dtype

    @staticmethod
    def load(name: str = "small", device: str = "auto") -> CharacterModel:
        """Read config and weights.

        Args:
            name: of the model config.
            device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".

        Raises:
            UserError: unknown model, no or damaged weights, no such device, or a model too large for this stream.
        """
        config = load_model_config(name)
        if not config.weights:
            raise UserError(f"model {name!r} has no trained weights and so draws no character; use --model small")
        chosen = choose_device(device)
        with torch.device("meta"):
            dit, autoencoder = DiT(config), Autoencoder(config)
        dit, autoencoder = (m.to_empty(device="cpu").eval().requires_grad_(False) for m in (dit, autoencoder))
        load_weights(dit, WEIGHTS_FOLDER / config.weights / "dit.safetensors")
        load_weights(autoencoder, WEIGHTS_FOLDER / config.weights / "autoencoder.safetensors")
        dtype = fast_dtype(chosen)
        autoencoder.to(memory_format=torch.channels_last)
        return CharacterModel(config, dit.to(chosen, dtype), autoencoder.to(chosen, dtype))

    @torch.inference_mode()
    def encode_portrait(self, portrait: np.ndarray) -> Tensor:
        """uint8 [H, W, 3] -> [1, channels, h, w], the latent of the portrait."""
        expected = (self.config.height, self.config.width, 3)
        if portrait.shape != expected or portrait.dtype != np.uint8:
            raise UserError(f"the portrait must be uint8 {expected}, not {portrait.dtype} {portrait.shape}")
        own = next(self.autoencoder.parameters()).dtype
        image = torch.from_numpy(portrait).to(self.device).permute(2, 0, 1)[None].to(own) / 255
        return self.autoencoder.encode_image(image).to(self.dtype)


class Stream:
    """One character talking for as long as sound comes in, in constant memory.

    Args:
        model: networks.
        portrait: uint8 [H, W, 3].
        seed: of noise and idle motion.
    """

    def __init__(self, model: CharacterModel, portrait: np.ndarray, seed: int = 0) -> None:
        self._model = model
        self.height, self.width = model.config.height, model.config.width
        latent = model.encode_portrait(portrait)
        self._sampler = Sampler(model.dit, latent, seed=seed, capture=True)
        with torch.inference_mode():
            self._sampler.prefill(model.dit.conditioning.reference(1).to(model.dtype))
        self._condition = Graph(lambda mel, motion: model.dit.conditioning(mel=mel, motion=motion)[0])
        self._decoder = open_decoder(model.autoencoder, model.config, i420=False, capture=True)
        self._decoder.reset(latent)
        self._idle = IdleMotion(1, seed=seed, sway=LIVE_SWAY)

    def run(self, pcm: Iterator[np.ndarray]) -> Iterator[Chunk]:
        """Generate video for sound; a chunk is decoded while the DiT makes the next one.

        Args:
            pcm: float32 [4000] blocks, mono at 24 kHz.

        Yields:
            One chunk per block, in order, two blocks later: one for the look-ahead of 83 ms, one for the decoder.
        """
        with ThreadPoolExecutor(1, "decoder") as decoder:
            last: Future[Chunk] | None = None
            for window, block in _windows(pcm):
                latent, timings = self._generate(window)
                # A copy: on a GPU the sampler makes the next one in the same place.
                index = self._sampler.index - 1
                this = decoder.submit(self._show, index, latent.clone(), block, timings)
                if last is not None:
                    yield last.result()
                last = this
            if last is not None:
                yield last.result()

    def step(self, window: np.ndarray, pcm: np.ndarray) -> Chunk:
        """Generate the next chunk.

        Args:
            window: float32 [48, 80], from `AudioWindow`.
            pcm: float32 [4000], the chunk's own sound.
        """
        index = self._sampler.index
        latent, timings = self._generate(window)
        return self._show(index, latent, pcm, timings)

    @torch.inference_mode()
    def _generate(self, window: np.ndarray) -> tuple[Tensor, dict[str, float]]:
        """The next latent, and seconds by stage."""
        model, clock = self._model, StageClock(self._model.device)
        mel = torch.from_numpy(window)[None].to(model.device, model.dtype)
        motion = self._idle.next_chunk().to(model.device, model.dtype)
        tokens = self._condition(mel, motion)
        clock.stage("audio")
        latent = self._sampler.sample(tokens)
        clock.stage("dit")
        return latent, clock.seconds

    @torch.inference_mode()
    def _show(self, index: int, latent: Tensor, pcm: np.ndarray, timings: dict[str, float]) -> Chunk:
        """The chunk of a latent."""
        clock = StageClock(self._model.device)
        frames = self._decoder.decode(latent)[0].cpu().numpy()
        clock.stage("decode")
        return Chunk(index=index, response_id=0, frames=frames, pcm=pcm, timings=timings | clock.seconds)


def _windows(pcm: Iterator[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What each chunk hears, and its own sound."""
    audio = AudioWindow()
    waiting: deque[np.ndarray] = deque()
    for block in pcm:
        if block.shape != (SAMPLES_PER_CHUNK,):
            raise ValueError(f"expected a block of {SAMPLES_PER_CHUNK} samples, got {block.shape}")
        audio.push(block)
        waiting.append(block)
        while (window := audio.pop()) is not None:
            yield window, waiting.popleft()
    # The sound has ended; silence follows for the look-ahead of the last chunk.
    audio.push(np.zeros(SAMPLES_PER_CHUNK, np.float32))
    while waiting and (window := audio.pop()) is not None:
        yield window, waiting.popleft()


class StageClock:
    """Seconds by stage; on a GPU it waits for the stage to end."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._last = time.perf_counter()

    def stage(self, name: str) -> None:
        """End the stage `name`."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now


def choose_device(name: str) -> torch.device:
    """Resolve "auto", "cpu", "cuda" or "cuda:N".

    Raises:
        UserError: not a device, or not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"{name!r} is not a device; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    # PyTorch keeps eight bits of an index: "cuda:999" becomes cuda:-25, "cuda:256" the first GPU.
    wrapped = device.index is not None and name != str(device)
    if device.type == "cuda" and (wrapped or (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"device {name!r} is not there: PyTorch sees {torch.cuda.device_count()} GPU(s); use cpu")
    return device


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the hardware multiplies it, float32 elsewhere."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float32
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def frame_size(model: str = "small") -> tuple[int, int]:
    """(height, width) of a model's frames, without loading it."""
    config = load_model_config(model)
    return config.height, config.width


def open_stream(*, model: str = "small", portrait: np.ndarray, seed: int = 0, device: str = "auto") -> Stream:
    """Load a model and start a stream; see `CharacterModel.load` and `Stream`.

    On a CPU, DiT and decoder get half of PyTorch's threads each: they work at the same time, and fewer threads lose
    less in waiting for each other when other programs want the cores.
    """
    loaded = CharacterModel.load(model, device)
    if loaded.device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    return Stream(loaded, portrait, seed)
