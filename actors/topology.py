"""From a deploy profile to processes, bundles and edges. Pure: no Ray, no GPU, nothing is started.

The way of a chunk, for any plan:

    aligner --window--> dit.0 [--hidden--> dit.1 ...] --latent--> decoder --frames--> publisher
       `---------------------------------pcm---------------------------------------------^

Aligner and publisher share a process, the room's: the sound of a chunk never leaves it, and its voice bridge reaches
both without a hop. The ring of the pcm edge is what bounds the chunks in flight from one end to the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from omegaconf import MISSING

from actors.channel import SLOTS, TensorSpec
from actors.channels import Kind
from actors.header import MAX_PLACES
from actors.voice.config import VoiceConfig
from characters.audio_features import WINDOW_FRAMES
from characters.chunk import FRAMES_PER_CHUNK, MEL_BINS, SAMPLES_PER_CHUNK
from characters.config import load_yaml
from characters.errors import UserError, did_you_mean
from characters.model.conditioning import AUDIO_TOKENS
from characters.model.config import ModelConfig, load_model_config

PROFILE_FOLDER = Path(__file__).resolve().parents[1] / "conf" / "deploy"

WINDOW = TensorSpec((WINDOW_FRAMES, MEL_BINS), "float32")
PCM = TensorSpec((SAMPLES_PER_CHUNK,), "float32")


@dataclass
class ParallelPlan:
    """How one session's model is spread over GPUs.

    Attributes:
        pipeline: groups that the DiT's layers are split over.
        sequence: GPUs of each group; they split a chunk's rows, and the heads in attention.
        decoder: GPUs of the decoder, 0 or 1; with 0 it runs in the process of the last DiT shard.
    """

    pipeline: int = 1
    sequence: int = 1
    decoder: int = 1


@dataclass
class Profile:
    """conf/deploy/NAME.yaml: what one session runs on.

    Attributes:
        model: name of a model config, or a path to one.
        plan: see `ParallelPlan`.
        device: "cpu" or "cuda".
        dtype: of latents on their way, "bfloat16" or "float32".
        gpus: GPUs of each GPU process; below 1 several processes share one, and talk through the host's memory.
        cpus: CPUs that Ray reserves for each process.
        threads: PyTorch's threads in each process of the model.
        flight: chunks between aligner and publisher. More hides more jitter, at 167 ms of latency each; 0 = one more
            than the model has stages in a row.
        exact_timings: wait for the GPU at the end of each stage, so that its stamps are true.
        voice: how the character hears, thinks and speaks.
    """

    model: str = MISSING
    plan: ParallelPlan = field(default_factory=ParallelPlan)
    device: str = "cpu"
    dtype: str = "float32"
    gpus: float = 1.0
    cpus: float = 1.0
    threads: int = 1
    flight: int = 0
    exact_timings: bool = True
    voice: VoiceConfig = field(default_factory=VoiceConfig)

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu or cuda, not {self.device!r}")
        if self.dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, not {self.dtype!r}")
        if not (0 < self.gpus < 1 or self.gpus == 1):
            raise ValueError("gpus must be 1 or a share of one GPU between 0 and 1")
        if self.cpus < 0 or self.threads < 1 or self.flight < 0:
            raise ValueError("cpus and flight must not be negative, threads must be at least 1")


@dataclass(frozen=True, slots=True)
class Role:
    """One role of a process.

    Attributes:
        name: unique, e.g. "dit.0.1" (layer group 0, rank 1 in it).
        kind: "aligner", "dit", "decoder" or "publisher".
        place: which of a header's stamps are its own; places count along the way of a chunk.
        layers: half-open range of DiT blocks; (0, 0) for other roles.
        rank, ranks: within its sequence group.
    """

    name: str
    kind: str
    place: int
    layers: tuple[int, int] = (0, 0)
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """One process.

    Attributes:
        name: unique.
        roles: what runs in it, each in a thread of its own.
        bundle: resources, as Ray's placement groups take them; bundle i belongs to stage i.
        device: "cpu" or "cuda".
    """

    name: str
    roles: tuple[Role, ...]
    bundle: dict[str, float]
    device: str


@dataclass(frozen=True, slots=True)
class Edge:
    """Who sends what to whom.

    Attributes:
        name: unique and fit for a file name.
        source, target: names of roles.
        port: what it is to them: "window", "hidden", "latent", "frames" or "pcm".
        spec: shape and dtype.
        kind: of channel.
        slots: of its ring.
    """

    name: str
    source: str
    target: str
    port: str
    spec: TensorSpec
    kind: Kind
    slots: int = SLOTS


@dataclass(frozen=True, slots=True)
class Topology:
    """One session's processes and edges, in the order of a chunk's way.

    Attributes:
        profile: what it was made from.
        model: the checked config of the profile's model.
        stages: processes; the room's is first.
        edges: of all roles, in an order in which both ends can open them one after another.
    """

    profile: Profile
    model: ModelConfig
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Resources of the stages, for a placement group."""
        return [dict(stage.bundle) for stage in self.stages]

    @property
    def places(self) -> list[str]:
        """Names for a header's stamps: the role's, without its rank."""
        names: dict[int, str] = {}
        for stage in self.stages:
            for role in stage.roles:
                names.setdefault(role.place, ".".join(role.name.split(".")[:2]))
        return [names[place] for place in sorted(names)]

    def stage_of(self, role: str) -> Stage:
        """The process of a role."""
        return next(stage for stage in self.stages if any(r.name == role for r in stage.roles))

    def inputs(self, role: str) -> list[Edge]:
        """Edges into a role."""
        return [edge for edge in self.edges if edge.target == role]

    def outputs(self, role: str) -> list[Edge]:
        """Edges out of a role."""
        return [edge for edge in self.edges if edge.source == role]


def profile_names() -> list[str]:
    """Names of the shipped profiles."""
    return sorted(path.stem for path in PROFILE_FOLDER.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """Read conf/deploy/NAME.yaml, or a path to a YAML file.

    Raises:
        UserError: unknown name, unknown or ill-typed key, or a value out of range.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else PROFILE_FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"there is no deploy profile {name!r}; {did_you_mean(name, profile_names())}")
    return load_yaml(path, Profile)


def plan_topology(profile: Profile) -> Topology:
    """Lay out a session.

    Raises:
        UserError: unknown model, or a plan that its sizes or its sampler do not allow.
    """
    model = load_model_config(profile.model)
    _check_plan(profile, model)
    plan, dit = profile.plan, model.dit
    bounds = [dit.num_layers * p // plan.pipeline for p in range(plan.pipeline + 1)]
    groups = [
        [Role(f"dit.{p}.{r}", "dit", 1 + p, (bounds[p], bounds[p + 1]), r, plan.sequence) for r in range(plan.sequence)]
        for p in range(plan.pipeline)
    ]
    last = groups[-1][0]
    decoder = Role("decoder", "decoder", 1 + plan.pipeline)
    aligner, publisher = Role("aligner", "aligner", 0), Role("publisher", "publisher", 2 + plan.pipeline)

    cpu = {"CPU": profile.cpus} if profile.cpus else {"CPU": 0.001}
    model_bundle = {**cpu, "GPU": profile.gpus} if profile.device == "cuda" else cpu
    stages = [Stage("room", (aligner, publisher), cpu, "cpu")]
    for role in (role for group in groups for role in group):
        roles = (role, decoder) if role == last and not plan.decoder else (role,)
        stages.append(Stage(role.name, roles, model_bundle, profile.device))
    if plan.decoder:
        stages.append(Stage("decoder", (decoder,), model_bundle, profile.device))

    stage_of = {role.name: stage for stage in stages for role in stage.roles}
    edges: list[Edge] = []

    def join(source: Role, target: Role, port: str, spec: TensorSpec, slots: int = SLOTS) -> None:
        kind = _kind(profile, stage_of[source.name], stage_of[target.name])
        edges.append(Edge(f"{source.name}-{port}-{target.name}", source.name, target.name, port, spec, kind, slots))

    h, w = model.latent_size
    latent = TensorSpec((model.latent_channels, h, w), profile.dtype)
    # A shard hands on its rows of the residual stream and, below them, the condition tokens of the chunk.
    hidden = TensorSpec((shard_rows(model.tokens, plan.sequence) + _conditions(model), dit.dim), profile.dtype)
    for role in groups[0]:
        join(aligner, role, "window", WINDOW)
    for group, following in pairwise(groups):
        for role, target in zip(group, following, strict=True):
            join(role, target, "hidden", hidden)
    join(last, decoder, "latent", latent)
    join(decoder, publisher, "frames", TensorSpec((FRAMES_PER_CHUNK, model.height * 3 // 2, model.width), "uint8"))
    flight = profile.flight or plan.pipeline + 1 + min(plan.decoder, 1)
    join(aligner, publisher, "pcm", PCM, flight)
    return Topology(profile, model, tuple(stages), tuple(edges))


def shard_rows(tokens: int, sequence: int) -> int:
    """Rows of a chunk on each GPU of a sequence group, padded to what matrix units take: 2992 over 3 are 1008 each."""
    return tokens if sequence == 1 else -(-tokens // (16 * sequence)) * 16


def _kind(profile: Profile, source: Stage, target: Stage) -> Kind:
    if source is target:
        return "local"
    both_on_gpus = source.device == target.device == "cuda"
    # NCCL refuses two ends on one GPU, which shares below a whole GPU allow.
    return "nccl" if both_on_gpus and profile.gpus == 1 else "shared_memory"


def _conditions(model: ModelConfig) -> int:
    """Condition tokens of a chunk that depend on its sound and motion."""
    return AUDIO_TOKENS + FRAMES_PER_CHUNK if model.dit.audio_dim else 0


def _check_plan(profile: Profile, model: ModelConfig) -> None:
    plan, dit, name = profile.plan, model.dit, profile.model

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise UserError(f"plan for model {name!r}: {message}")

    require(plan.pipeline >= 1 and plan.sequence >= 1, "pipeline and sequence must be at least 1")
    require(plan.decoder in (0, 1), "decoder must be 0 or 1")
    require(plan.pipeline <= dit.num_layers, f"pipeline is at most the number of layers, {dit.num_layers}")
    require(plan.pipeline + 3 <= MAX_PLACES, f"pipeline is at most {MAX_PLACES - 3}")
    require(dit.num_heads % plan.sequence == 0, f"sequence must divide the number of heads, {dit.num_heads}")
    require(model.height % 2 == 0 and model.width % 2 == 0, "I420 needs an even height and width")
    if plan.pipeline > 1:
        one_pass = len(model.sampler.steps) == 1 and model.sampler.commit == "reuse"
        require(one_pass, "pipeline needs a sampler of one pass: steps [1.0], commit reuse")
        require(not dit.concat_previous, "pipeline cannot feed a chunk's latent to the next (dit.concat_previous)")
    require(
        profile.device == "cuda" or plan.pipeline == plan.sequence == 1,
        "only GPUs can share the DiT: on the CPU pipeline and sequence must be 1",
    )
