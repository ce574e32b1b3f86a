"""Sizes of a model, as read from conf/model/NAME.yaml."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import cache

from omegaconf import MISSING

from characters.checkpoints.store import find_weights
from characters.chunk import FRAMES_PER_CHUNK, SAMPLE_RATE, Clock
from characters.config import conf_names, load_conf
from characters.errors import UserError
from characters.media.framing import Framing
from characters.model.audio_projection import AudioProjectionConfig
from characters.model.speech_tokens import SpeechTokensConfig
from characters.model.wav2vec2 import Wav2Vec2Config


@dataclass
class DiTConfig:
    """A Wan-compatible video diffusion transformer (Wan 2.1 technical report, section 4.2).

    Attributes:
        dim: channels of a token.
        ffn_dim: channels inside the feed-forward network.
        num_heads: attention heads, of dim / num_heads channels each.
        num_layers: transformer blocks.
        patch: side of the square spatial patch, in latent pixels.
        freq_dim: width of the sinusoidal timestep embedding.
        rope_theta: RoPE base of the time, height and width axes.
        concat_previous: append the previous chunk's latent to the input channels.
        concat_reference: append the reference image's latent to the input channels.
        prediction: what the network's output means, "x0" or "velocity" (noise - x0).
        residual_reference: the output is a difference to the reference latent ("x0" only).
        text_dim: width of the text encoder's tokens; 0 = no text conditioning.
        audio_dim: width of the audio encoder; 0 = no audio conditioning.
        audio_layers: transformer layers of the audio encoder.
    """

    dim: int = MISSING
    ffn_dim: int = MISSING
    num_heads: int = MISSING
    num_layers: int = MISSING
    patch: int = 2
    freq_dim: int = 256
    rope_theta: list[float] = field(default_factory=lambda: [10000.0, 10000.0, 10000.0])
    concat_previous: bool = False
    concat_reference: bool = False
    prediction: str = "velocity"
    residual_reference: bool = False
    text_dim: int = 0
    audio_dim: int = 0
    audio_layers: int = 2


@dataclass
class WanVaeConfig:
    """The autoencoder of Wan 2.1; Wan 2.2 has other sizes (Wan 2.1 technical report, section 4.1).

    Attributes:
        encoder_dim, decoder_dim: channels at the finest level. A smaller decoder is faster and needs its own weights.
        multipliers: channels of the levels, from fine to coarse, in units of encoder_dim and decoder_dim.
        residual_blocks: residual blocks in each level of the encoder; the decoder has one more.
        temporal: whether frames are halved with the pixels, after each level but the last.
        patch: side of the pixel block that is one input pixel.
        shortcuts: whether a shortcut leads around each level (Wan 2.2).
        compact_cache: the decoder remembers the frames before a chunk as bytes, in half the memory.
        weights: safetensors file with the published weights, original or diffusers names; empty = random weights.
    """

    encoder_dim: int = 96
    decoder_dim: int = 96
    multipliers: list[int] = field(default_factory=lambda: [1, 2, 4, 4])
    residual_blocks: int = 2
    temporal: list[bool] = field(default_factory=lambda: [False, True, True])
    patch: int = 1
    shortcuts: bool = False
    compact_cache: bool = True
    weights: str = ""

    @property
    def stride(self) -> int:
        """Pixels per latent pixel."""
        return self.patch * 2 ** len(self.temporal)


@dataclass
class AutoencoderConfig:
    """Causal streaming autoencoder: the small one, or Wan's.

    Attributes:
        encoder_channels: channels of the small autoencoder's encoder, from fine to coarse.
        decoder_channels: channels of the small autoencoder's decoder, from fine to coarse, at 1/4, 1/8 and 1/16 of the
            frame.
        wan: sizes of the Wan VAE, which then takes the small autoencoder's place.
        tiny: takes TAEHV's taew2_1 instead, for the latents of the Wan VAE.
    """

    encoder_channels: list[int] = field(default_factory=lambda: [48, 96, 128, 160])
    decoder_channels: list[int] = field(default_factory=lambda: [64, 96, 192])
    wan: WanVaeConfig | None = None
    tiny: bool = False


@dataclass
class WindowConfig:
    """A model that makes a window of latent frames at a time and goes on from the last frames of the one before.

    Attributes:
        frames: latent frames of a window; the first stands for one frame of video, the others for four each.
        history: frames of video of the window before that a window begins with: 1 + 4 n of them.
        fps: frames of video a second.
        ear: sizes of its wav2vec 2.0.
        projection: sizes of what turns the ear's states into tokens.
        heard: seconds of sound that the ear hears, the window's own at their end.
        colour: whether frames are held to the portrait's colours.
    """

    frames: int = 9
    history: int = 5
    fps: int = 25
    ear: Wav2Vec2Config = field(default_factory=Wav2Vec2Config)
    projection: AudioProjectionConfig = field(default_factory=AudioProjectionConfig)
    heard: float = 8.0
    colour: bool = True

    @property
    def pixels(self) -> int:
        """Frames of video of a window, its history's included."""
        return 1 + 4 * (self.frames - 1)

    @property
    def fresh(self) -> int:
        """Frames of video that a window adds."""
        return self.pixels - self.history

    @property
    def history_latents(self) -> int:
        """Latent frames that the history is encoded to."""
        return 1 + (self.history - 1) // 4


@dataclass
class S2vConfig:
    """What Wan2.2-S2V adds to the DiT: sound that is injected between blocks, and a portrait that is packed.

    Attributes:
        injected: blocks after which sound enters, frame by frame. Text is then the only other condition.
        speech: sizes of what turns the ear's states into tokens.
        distance: latent frames that the reference stays ahead of the current chunk.
        fps: frames of video a second.
        ear: sizes of its wav2vec 2.0.
        heard: seconds of sound that the ear hears, the chunk's own at their end.
    """

    injected: list[int] = field(default_factory=list)
    speech: SpeechTokensConfig = field(default_factory=SpeechTokensConfig)
    distance: int = 30
    fps: int = 25
    ear: Wav2Vec2Config = field(
        default_factory=lambda: Wav2Vec2Config(dim=1024, ffn_dim=4096, heads=16, layers=24, stable=True)
    )
    heard: float = 8.0


@dataclass
class SamplerConfig:
    """Few-step flow-matching sampler.

    Attributes:
        steps: noise levels of the denoising passes, from 1 downwards.
        timesteps: what the network is told of each level, times 1000; empty = the level itself. Models that were run in
            bfloat16 have never seen 937.5, but 936.
        source: what the first pass of a window starts from: "noise" or the "reference".
        noise: between the passes of a window: "kept", or drawn "fresh".
        end: level at which a window is taken; below 0 it is a step past the clean latent.
        commit: "reuse" keeps the K/V that the last denoising pass wrote; "clean" writes them once more from the
            finished latent; with "level" each pass has a ring of its own, of K/V at its own noise level.
        context_noise: share of noise mixed into the previous latent before it conditions the next chunk; it stops
            errors from copying themselves from chunk to chunk.
    """

    steps: list[float] = field(default_factory=lambda: [1.0])
    commit: str = "reuse"
    context_noise: float = 0.0
    timesteps: list[float] = field(default_factory=list)
    source: str = "noise"
    noise: str = "kept"
    end: float = 0.0


@dataclass
class CheckpointFile:
    """A published file that a model's weights are made from.

    Attributes:
        name: of the safetensors file that it becomes, in the model's folder.
        repository: on the hub.
        file: in the repository.
        revision: of the repository, a commit; empty = the newest.
        size: in bytes; 0 = the hub says.
        sha256: of the published file; empty = the hub says.
        licence: of the file.
        prefix: put before the names of its tensors.
    """

    name: str = MISSING
    repository: str = MISSING
    file: str = MISSING
    revision: str = ""
    size: int = 0
    sha256: str = ""
    licence: str = ""
    prefix: str = ""


@dataclass
class ModelConfig:
    """One model: frame size, latent size, context and parts.

    Attributes:
        height, width: frame size in pixels.
        latent_channels: channels of a latent frame.
        latent_stride: pixels per latent pixel, in each direction.
        sink: chunks of context that hold the reference image.
        ring: chunks of context that hold the most recent chunks, the current one among them.
        chunk: latent frames of a chunk.
        s2v: a model made of Wan2.2-S2V.
        window: takes a window at a time instead of a chunk with a cache.
        lora_alpha: alpha of a LoRA adapter beside the weights; its strength is alpha / rank.
        weights: folder of safetensors files, below characters/weights or among those that `characters models` brings;
            empty = random weights, which draw noise.
        files: published files that the weights are made from; empty = they ship, or there are none.
        portraits: kinds of portraits that it can animate, "drawn" and "photograph"; empty = nobody has tried.
        framing: where it wants the face of a photograph.
    """

    height: int = MISSING
    width: int = MISSING
    latent_channels: int = MISSING
    latent_stride: int = MISSING
    sink: int = 1
    ring: int = 3
    chunk: int = 1
    dit: DiTConfig = field(default_factory=DiTConfig)
    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    s2v: S2vConfig | None = None
    window: WindowConfig | None = None
    lora_alpha: float = 64.0
    weights: str = ""
    files: list[CheckpointFile] = field(default_factory=list)
    portraits: list[str] = field(default_factory=list)
    framing: Framing = field(default_factory=Framing)

    @property
    def frames(self) -> int:
        """Latent frames that the DiT makes at a time."""
        return self.window.frames if self.window is not None else self.chunk

    @property
    def clock(self) -> Clock:
        """Frames a second and frames a chunk."""
        if self.window is not None:
            return Clock(self.window.fps, self.window.fresh)
        return Clock() if self.s2v is None else Clock(self.s2v.fps, FRAMES_PER_CHUNK * self.chunk)

    @property
    def random_weights(self) -> bool:
        """Whether a part has no trained weights on this machine: all pictures are noise then."""
        wan = self.autoencoder.wan
        if self.files:
            return find_weights(self.weights) is None
        return not self.weights or (wan is not None and not wan.weights)

    @property
    def latent_size(self) -> tuple[int, int]:
        """(height, width) of a latent frame."""
        return self.height // self.latent_stride, self.width // self.latent_stride

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of DiT tokens in a latent frame."""
        h, w = self.latent_size
        return h // self.dit.patch, w // self.dit.patch

    @property
    def tokens(self) -> int:
        """DiT tokens in a chunk, or in a window."""
        rows, columns = self.grid
        return self.frames * rows * columns

    @property
    def passes(self) -> int:
        """Passes of the DiT over a chunk."""
        return len(self.sampler.steps) + (self.sampler.commit == "clean")

    @property
    def rings(self) -> int:
        """Caches of a session: one, or one for each pass."""
        return len(self.sampler.steps) if self.sampler.commit == "level" else 1


def load_model_config(name: str) -> ModelConfig:
    """Read conf/model/NAME.yaml or a path, see `characters.config.load_conf`.

    Raises:
        UserError: an error of `load_conf`, or sizes that do not fit together.
    """
    config = load_conf("model", name, ModelConfig, "model")
    check(config, f"model {name}")
    return config


def portrait_note(config: ModelConfig, kind: str, name: str) -> str:
    """What is to be said before a model animates a portrait of this kind: "" if it can.

    Args:
        config: of the model.
        kind: of the portrait: "drawn" or "photograph".
        name: of the model.
    """
    if not config.portraits or kind in config.portraits:
        return ""
    shown = {"drawn": "drawn portraits", "photograph": "photographs"}
    effect = (
        "on a photograph the lips hardly move and the picture smears"
        if kind == "photograph"
        else "others come out wrong"
    )
    known = " and ".join(shown[portrait] for portrait in config.portraits)
    return f"model {name!r} animates {known} only: {effect}; `characters models list` says which model animates what"


@cache
def models_for(kind: str) -> list[str]:
    """Names of the models of conf/model that animate portraits of this kind, "drawn" or "photograph"."""
    return [name for name in conf_names("model") if kind in load_model_config(name).portraits]


def with_context(config: ModelConfig, context: int, name: str) -> ModelConfig:
    """The same model with another context: chunks that a chunk attends to, those of the sink and itself among them.

    Raises:
        UserError: no room for a chunk beside the sink. The message names the model `name`.
    """
    if context <= config.sink:
        raise UserError(f"a context of {context} is too short; model {name!r} needs at least {config.sink + 1}")
    return replace(config, ring=context - config.sink)


def check(config: ModelConfig, where: str) -> None:
    """Raise UserError if the sizes of a model don't fit together; `where` names the file in the message."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise UserError(f"{where}: {message}")

    dit = config.dit
    step = config.latent_stride * dit.patch
    for key in ("height", "width", "latent_channels", "latent_stride", "sink", "ring"):
        require(getattr(config, key) > 0, f"{key} must be positive")
    require(
        config.height % step == 0 and config.width % step == 0,
        f"height and width must be multiples of {step} (latent_stride x dit.patch)",
    )
    require(dit.num_heads > 0 and dit.dim % dit.num_heads == 0, "dit.dim must be a multiple of dit.num_heads")
    require(dit.dim // dit.num_heads % 2 == 0, "the head dimension dit.dim / dit.num_heads must be even")
    require(not (config.autoencoder.tiny and config.autoencoder.wan), "autoencoder takes wan or tiny, not both")
    require(config.window is not None or not config.autoencoder.tiny, "autoencoder.tiny is for models with a window")
    require(not config.autoencoder.tiny or config.latent_stride == 8, "autoencoder.tiny has a stride of 8")
    if (wan := config.autoencoder.wan) is not None:
        require(
            config.latent_stride == wan.stride and len(wan.multipliers) == len(wan.temporal) + 1,
            f"latent_stride must be the stride of autoencoder.wan, {wan.stride}, and autoencoder.wan.multipliers must "
            "have one entry more than autoencoder.wan.temporal",
        )
    require(len(dit.rope_theta) == 3, "dit.rope_theta needs three numbers: time, height, width")
    require(dit.prediction in ("x0", "velocity"), f"dit.prediction must be x0 or velocity, not {dit.prediction!r}")
    require(
        not dit.residual_reference or (dit.prediction == "x0" and dit.concat_reference),
        "dit.residual_reference needs dit.prediction: x0 and dit.concat_reference: true",
    )
    steps = config.sampler.steps
    require(
        len(steps) > 0 and steps[0] == 1.0 and all(a > b > 0 for a, b in itertools.pairwise(steps)),
        "sampler.steps must start at 1.0 and fall, staying above 0",
    )
    require(config.sampler.commit in ("reuse", "clean", "level"), "sampler.commit must be reuse, clean or level")
    require(config.sampler.source in ("noise", "reference"), "sampler.source must be noise or reference")
    require(config.sampler.noise in ("kept", "fresh"), "sampler.noise must be kept or fresh")
    require(len(config.sampler.timesteps) in (0, len(steps)), "sampler.timesteps must be as many as sampler.steps")
    require(config.chunk > 0 and (config.chunk == 1 or config.s2v is not None), "chunk is 1 without s2v")
    if (s2v := config.s2v) is not None:
        require(dit.text_dim > 0 and dit.audio_dim == 0, "a model with s2v takes text, and hears through s2v.ear")
        require(all(0 <= layer < dit.num_layers for layer in s2v.injected), "s2v.injected must be blocks of the dit")
        require(
            (s2v.speech.layers, s2v.speech.dim) == (s2v.ear.layers + 1, s2v.ear.dim),
            "s2v.speech must take what s2v.ear gives: its layers and its input",
        )
        require(config.window is None and config.sink == 1, "s2v is for models with a ring, and a sink of 1")
    if (window := config.window) is not None:
        require(window.frames > window.history_latents > 0, "window.frames must be more than window.history fills")
        require(window.fps > 0 and SAMPLE_RATE % window.fps == 0, f"window.fps must divide {SAMPLE_RATE}")
        require(window.history % 4 == 1, "window.history must be 1, 5, 9, ... frames")
        require(
            dit.audio_dim == dit.text_dim == 0, "a window model hears through window.ear: no dit.audio_dim or text_dim"
        )
        require(window.projection.out == dit.dim, "window.projection.out must be dit.dim")
        require(
            (window.projection.layers, window.projection.dim) == (window.ear.layers, window.ear.dim),
            "window.projection must take what window.ear gives",
        )
    require(0 <= config.sampler.context_noise < 1, "sampler.context_noise must be in [0, 1)")
    names = [file.name for file in config.files]
    require(
        all(name.endswith(".safetensors") and "/" not in name for name in names) and len(set(names)) == len(names),
        "files must have names of their own that end in .safetensors",
    )
    require(not config.files or bool(config.weights), "files need weights, the name of a folder for them")
    require(set(config.portraits) <= {"drawn", "photograph"}, "portraits are drawn or photograph")
