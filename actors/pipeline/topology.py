"""From a deploy profile to processes, bundles and edges. Reads configuration only: no Ray, no GPU, nothing is started.

The path of a chunk, for any plan:

    aligner --heard---> dit.0 [--hidden--> dit.1 ...] --latent--> decoder --frames--> publisher
       `---------------------------------pcm---------------------------------------------^

A model with a window makes pictures in one process:

    aligner --heard---> generator --frames--> publisher
       `-----------------pcm---------------------^

A decoder over several GPUs is several roles: each receives the latent, and the first, "decoder", sends the frames.
Aligner and publisher share the room's process: the sound of a chunk never leaves it, and its voice bridge reaches both
without a hop. The ring of the pcm edge bounds the chunks in flight between aligner and publisher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from omegaconf import MISSING

from actors.channels.opening import Kind
from actors.channels.protocol import SLOTS, TensorSpec
from actors.pipeline.header import MAX_SPANS
from actors.voice.config import VoiceConfig
from characters.chunk import FRAMES_PER_CHUNK
from characters.config import load_conf
from characters.errors import UserError
from characters.generate.hearing import hearing_of
from characters.model.conditioning import AUDIO_TOKENS
from characters.model.config import ModelConfig, load_model_config, with_context
from characters.model.plan import BYTES, ParallelPlan, Shard, shards
from characters.model.plan import check_plan as check_model_plan

# Chunks of a model whose chunks can be cut that may be between aligner and publisher: one is shown, one waits, one is
# made anew after a cut, and one more may be cut away meanwhile. The aligner issues no more than it needs.
_CUT_SLOTS = 4
_LEAST_CPUS = 0.001  # a bundle without any resource is none
_LEAST_GPUS = 0.001  # of a shared one, for a process that only waits


@dataclass
class Scaling:
    """How many sessions run at a time.

    Attributes:
        sessions: how many the machines hold, if somebody has measured it; 0 = as many as the planner finds.
        most: pipelines at most, if their number follows the demand; 0 = it is set from outside.
        spares: pipelines kept ready for new sessions, if their number follows the demand.
    """

    sessions: int = 0
    most: int = 0
    spares: int = 1

    def __post_init__(self) -> None:
        if min(self.sessions, self.most, self.spares) < 0:
            raise ValueError("scaling.sessions, scaling.most and scaling.spares must not be negative")


@dataclass
class Profile:
    """conf/deploy/NAME.yaml: the model that a session runs, and its hardware.

    Attributes:
        model: name of a model config, or a path to one.
        plan: how the model is spread over processes.
        context: chunks that a chunk attends to; 0 = as many as the model's config says.
        device: "cpu" or "cuda".
        dtype: of the latents that processes send each other, "bfloat16" or "float32".
        precision: of the DiT's matrix products and KV cache, "bf16" (the model's own dtype) or "fp8".
        gpus: GPUs of each GPU process; below 1 several processes share one, and exchange data through host memory.
        cpus: CPUs that Ray reserves for each process.
        threads: PyTorch's threads in each process of the model.
        flight: chunks between aligner and publisher. More chunks hide more jitter, at 167 ms of latency each; 0 = one
            more than the stages that follow one another.
        exact_timings: whether each stage waits for the GPU at its end, so that its stamps are exact.
        random_weights: whether a model without trained weights may be served. Its pictures are noise.
        mark: whether the picture shows the words "AI-generated". The room's metadata say so in any case.
        standby: processes that wait with everything loaded, to take the place of one that dies or hangs: "none", "room"
            (for the room's, on a CPU, 0.5 GB), or "all". On CPUs one process stands by for all, 0.6 GB with the small
            model; on GPUs another one for the model's, with a GPU of its own or next to nothing of a shared one, and
            memory for all that they load (`characters plan` says how much).
        voice: how the character hears, thinks and speaks.
        scaling: how many sessions run at a time.
    """

    model: str = MISSING
    plan: ParallelPlan = field(default_factory=ParallelPlan)
    context: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    precision: str = "bf16"
    gpus: float = 1.0
    cpus: float = 1.0
    threads: int = 1
    flight: int = 0
    exact_timings: bool = True
    random_weights: bool = False
    mark: bool = False
    standby: str = "none"
    voice: VoiceConfig = field(default_factory=VoiceConfig)
    scaling: Scaling = field(default_factory=Scaling)

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu or cuda, not {self.device!r}")
        if self.dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, not {self.dtype!r}")
        if self.precision not in BYTES:
            raise ValueError(f"precision must be bf16 or fp8, not {self.precision!r}")
        if self.standby not in ("none", "room", "all"):
            raise ValueError(f"standby must be none, room or all, not {self.standby!r}")
        if not (0 < self.gpus < 1 or self.gpus == 1):
            raise ValueError("gpus must be 1 or a share of one GPU between 0 and 1")
        if min(self.cpus, self.flight, self.context) < 0 or self.threads < 1:
            raise ValueError("cpus, flight and context must not be negative, threads must be at least 1")


@dataclass(frozen=True, slots=True)
class Role:
    """One role of a process.

    Attributes:
        name: unique, e.g. "dit.0.1" (layer group 0, rank 1 in it).
        kind: "aligner", "dit", "decoder", "generator" (both in one) or "publisher".
        span: number of its span in a chunk's header; spans count along the path of a chunk. Roles that work in
            parallel share one.
        shard: part of the DiT; None for other roles.
        band: of the picture, from the top, that a decoder has; 0 for other roles.
    """

    name: str
    kind: str
    span: int
    shard: Shard | None = None
    band: int = 0


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One process.

    Attributes:
        name: unique.
        roles: that run in it, each in a thread of its own.
        bundle: resources, as Ray's placement groups take them; bundle i belongs to stage i.
        device: "cpu" or "cuda".
    """

    name: str
    roles: tuple[Role, ...]
    bundle: dict[str, float]
    device: str


@dataclass(frozen=True, slots=True)
class Standby:
    """A process that waits to take a stage's place.

    Attributes:
        name: unique among stages and standbys.
        stages: names of those that it can become.
        bundle: resources. It has GPUs exactly if those stages have: the two then change places.
    """

    name: str
    stages: tuple[str, ...]
    bundle: dict[str, float]


@dataclass(frozen=True, slots=True)
class Edge:
    """Which role sends what to which.

    Attributes:
        name: unique and fit for a file name.
        source, target: names of roles.
        port: what the tensors are: "heard", "hidden", "latent", "frames" or "pcm".
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
    """One session's processes and edges, in the order of a chunk's path.

    Attributes:
        profile: what it was made from.
        model: checked config of the profile's model.
        stages: processes, the room's first.
        edges: of all roles, in an order in which the stages can open them one after another without a deadlock.
        standbys: see `Profile.standby`.
    """

    profile: Profile
    model: ModelConfig
    stages: tuple[StageSpec, ...]
    edges: tuple[Edge, ...]
    standbys: tuple[Standby, ...] = ()

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Resources of the stages, then of the standbys, for a placement group."""
        return [*(dict(stage.bundle) for stage in self.stages), *(dict(standby.bundle) for standby in self.standbys)]

    @property
    def spans(self) -> list[str]:
        """Names of a header's spans: the role's name, without its rank."""
        names: dict[int, str] = {}
        for stage in self.stages:
            for role in stage.roles:
                names.setdefault(role.span, ".".join(role.name.split(".")[:2]))
        return [names[span] for span in sorted(names)]

    @property
    def cuts(self) -> bool:
        """Whether a chunk can be cut at any frame: the model goes on from frames that were shown."""
        return self.model.window is not None

    def stage_of(self, role: str) -> StageSpec:
        """The process of a role."""
        return next(stage for stage in self.stages if any(r.name == role for r in stage.roles))

    def inputs(self, role: str) -> list[Edge]:
        """Edges into a role."""
        return [edge for edge in self.edges if edge.target == role]

    def outputs(self, role: str) -> list[Edge]:
        """Edges out of a role."""
        return [edge for edge in self.edges if edge.source == role]


def load_profile(name: str) -> Profile:
    """Read conf/deploy/NAME.yaml or a path, see `characters.config.load_conf`, which raises UserError."""
    return load_conf("deploy", name, Profile, "deploy profile")


def chunks_in_flight(plan: ParallelPlan) -> int:
    """Chunks between aligner and publisher: one in each stage that follows another, and one more, which hides jitter.

    The planner predicts the turn with it, see `deploy.planning.cost`.
    """
    return plan.pipeline + min(plan.decoder, 1) + 1


def plan_topology(profile: Profile) -> Topology:
    """Lay out a session.

    Raises:
        UserError: unknown model, or a plan that its sizes or its sampler do not allow.
    """
    model = load_model_config(profile.model)
    if profile.context:
        model = with_context(model, profile.context, profile.model)
    check_plan(profile, model)
    if model.window is not None:
        return _window_topology(profile, model)
    plan = profile.plan
    parts = [Role(f"dit.{shard.stage}.{shard.rank}", "dit", 1 + shard.stage, shard) for shard in shards(plan, model)]
    groups = [parts[i : i + plan.sequence] for i in range(0, len(parts), plan.sequence)]
    last = groups[-1][0]
    decoders = [
        Role(f"decoder.{band}" if band else "decoder", "decoder", 1 + plan.pipeline, band=band)
        for band in range(max(plan.decoder, 1))
    ]
    aligner, publisher = Role("aligner", "aligner", 0), Role("publisher", "publisher", 2 + plan.pipeline)

    cpu, model_bundle = _resources(profile)
    stages = [StageSpec("room", (aligner, publisher), cpu, "cpu")]
    for role in parts:
        roles = (role, *decoders) if role == last and not plan.decoder else (role,)
        stages.append(StageSpec(role.name, roles, model_bundle, profile.device))
    if plan.decoder:
        stages += [StageSpec(role.name, (role,), model_bundle, profile.device) for role in decoders]

    stage_of = {role.name: stage for stage in stages for role in stage.roles}
    edges: list[Edge] = []

    def join(source: Role, target: Role, port: str, spec: TensorSpec, slots: int = SLOTS) -> None:
        kind = _kind(profile, stage_of[source.name], stage_of[target.name])
        edges.append(Edge(f"{source.name}-{port}-{target.name}", source.name, target.name, port, spec, kind, slots))

    h, w = model.latent_size
    latent = TensorSpec((model.latent_channels, h, w), profile.dtype)
    # A shard sends its rows of the residual stream and, below them, the condition tokens of the chunk.
    assert parts[0].shard is not None
    hidden = TensorSpec((parts[0].shard.rows + _conditions(model), model.dit.dim), profile.dtype)
    heard = TensorSpec(hearing_of(model).shape, "float32")
    for role in groups[0]:
        join(aligner, role, "heard", heard)
    for group, following in pairwise(groups):
        for role, target in zip(group, following, strict=True):
            join(role, target, "hidden", hidden)
    for role in decoders:
        join(last, role, "latent", latent)
    frames = TensorSpec((model.clock.frames, model.height * 3 // 2, model.width), "uint8")
    join(decoders[0], publisher, "frames", frames)
    join(
        aligner,
        publisher,
        "pcm",
        TensorSpec((model.clock.samples,), "float32"),
        profile.flight or chunks_in_flight(plan),
    )
    return Topology(profile, model, tuple(stages), tuple(edges), _standbys(profile, stages))


def _standbys(profile: Profile, stages: Sequence[StageSpec]) -> tuple[Standby, ...]:
    if profile.standby == "none":
        return ()
    names, idle = tuple(stage.name for stage in stages), {"CPU": _LEAST_CPUS}  # it only waits
    if profile.standby == "all" and profile.device == "cpu":
        return (Standby("standby", names, idle),)
    room = Standby("standby.room", names[:1], idle)
    if profile.standby == "room":
        return (room,)
    gpus = profile.gpus if profile.gpus == 1 else _LEAST_GPUS
    return (room, Standby("standby.model", names[1:], {**idle, "GPU": gpus}))


def _resources(profile: Profile) -> tuple[dict[str, float], dict[str, float]]:
    """Of the room's process, and of one of the model's."""
    cpu = {"CPU": profile.cpus or _LEAST_CPUS}
    return cpu, {**cpu, "GPU": profile.gpus} if profile.device == "cuda" else cpu


def _window_topology(profile: Profile, model: ModelConfig) -> Topology:
    aligner, generator, publisher = (
        Role(name, name, span) for span, name in enumerate(("aligner", "generator", "publisher"))
    )
    room, bundle = _resources(profile)
    stages = (
        StageSpec("room", (aligner, publisher), room, "cpu"),
        StageSpec("generator", (generator,), bundle, profile.device),
    )
    clock, slots = model.clock, profile.flight or _CUT_SLOTS
    heard = TensorSpec(hearing_of(model).shape, "float32")
    frames = TensorSpec((clock.frames, model.height * 3 // 2, model.width), "uint8")
    pcm = TensorSpec((clock.samples,), "float32")
    edges = (
        Edge("aligner-heard-generator", "aligner", "generator", "heard", heard, "shared_memory"),
        Edge("generator-frames-publisher", "generator", "publisher", "frames", frames, "shared_memory", slots - 1),
        Edge("aligner-pcm-publisher", "aligner", "publisher", "pcm", pcm, "local", slots),
    )
    return Topology(profile, model, stages, edges, _standbys(profile, stages))


def check_weights(topology: Topology) -> None:
    """Raise UserError for a model without weights on this machine whose profile doesn't say `random_weights: true`."""
    profile = topology.profile
    if topology.model.files and topology.model.random_weights and not profile.random_weights:
        name = topology.model.weights
        raise UserError(f"the weights of model {profile.model!r} are not on this machine: characters models get {name}")
    if topology.model.random_weights and not profile.random_weights:
        raise UserError(
            f"model {profile.model!r} has no trained weights, so its pictures are noise; "
            "to serve it all the same, set random_weights: true in the deploy profile"
        )


def _kind(profile: Profile, source: StageSpec, target: StageSpec) -> Kind:
    if source is target:
        return "local"
    both_on_gpus = source.device == target.device == "cuda"
    # NCCL refuses two ends on one GPU, which can happen when processes share GPUs.
    return "nccl" if both_on_gpus and profile.gpus == 1 else "shared_memory"


def _conditions(model: ModelConfig) -> int:
    """Condition tokens of a chunk that depend on its sound and motion."""
    return AUDIO_TOKENS + FRAMES_PER_CHUNK if model.dit.audio_dim else 0


def check_plan(profile: Profile, model: ModelConfig) -> None:
    """Raise UserError for a plan that the model, the headers of chunks or I420 frames do not allow."""
    plan, name = profile.plan, profile.model
    check_model_plan(plan, model, name)

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise UserError(f"plan for model {name!r}: {message}")

    require(
        model.window is None or plan == ParallelPlan(1, 1, 0),
        "a model with a window runs in one process: set plan to {pipeline: 1, sequence: 1, decoder: 0}",
    )
    require(
        model.window is None or profile.flight in (0, _CUT_SLOTS),
        f"flight is 0 or {_CUT_SLOTS} for a model with a window",
    )
    require(plan.pipeline + 3 <= MAX_SPANS, f"pipeline is at most {MAX_SPANS - 3}")
    require(model.height % 2 == 0 and model.width % 2 == 0, "I420 needs an even height and width")
    require(
        (plan.gpus == 1 and plan.decoder <= 1) or profile.device == "cpu" or profile.gpus == 1,
        "a DiT or a decoder that is split needs whole GPUs: set gpus to 1",
    )
