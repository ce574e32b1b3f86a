"""Plans to processes and edges."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest

from actors.channels.protocol import TensorSpec
from actors.pipeline.topology import Profile, check_weights, load_profile, plan_topology
from characters.config import conf_names
from characters.errors import UserError
from characters.model.config import load_model_config
from characters.model.plan import ParallelPlan, shard_rows


def drawn_profiles() -> list[str]:
    """Shipped profiles whose models need nothing that must be downloaded."""
    return [name for name in conf_names("deploy") if not load_model_config(load_profile(name).model).files]


def test_profiles_for_photographs_name_models_that_can_be_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: load_profile(name) for name in set(conf_names("deploy")) - set(drawn_profiles())}
    assert {"leaptalk", "leaptalk-rtx", "flashhead-pro"} == set(others)
    for profile in others.values():
        model = load_model_config(profile.model)
        assert model.portraits == ["photograph"] and model.window is not None and not profile.random_weights
        assert profile.plan == ParallelPlan(1, 1, 0) and profile.device == "cuda"
    assert load_model_config(others["leaptalk-rtx"].model).autoencoder.tiny and others["leaptalk"].gpus < 1
    topology = plan_topology(load_profile("laptop"))
    monkeypatch.setenv("CHARACTERS_MODELS", "/nowhere")
    absent = dataclasses.replace(topology, model=load_model_config("leaptalk"))
    with pytest.raises(UserError, match="are not on this machine: characters models get leaptalk"):
        check_weights(absent)


def test_every_shipped_profile_can_be_laid_out() -> None:
    assert {"laptop", "h200", "h200x4"} <= set(conf_names("deploy"))
    for name in drawn_profiles():
        topology = plan_topology(load_profile(name))
        assert len(topology.bundles) == len(topology.stages) + len(topology.standbys)
        # Whatever becomes a stage can be of the same use as it was.
        gpus = {stage.name: "GPU" in stage.bundle for stage in topology.stages}
        for standby in topology.standbys:
            assert {gpus[name] for name in standby.stages} == {"GPU" in standby.bundle}
        assert topology.stages[0].name == "room"


def test_laptop() -> None:
    topology = plan_topology(load_profile("laptop"))
    assert topology.spans == ["aligner", "dit.0", "decoder", "publisher"]
    assert [stage.name for stage in topology.stages] == ["room", "dit.0.0", "decoder"]
    assert topology.bundles == [*[{"CPU": 0.25}] * 3, {"CPU": 0.001}]
    assert [standby.stages for standby in topology.standbys] == [("room", "dit.0.0", "decoder")]
    assert {(e.source, e.target): (e.spec, e.kind, e.slots) for e in topology.edges} == {
        ("aligner", "dit.0.0"): (TensorSpec((48, 80), "float32"), "shared_memory", 2),
        ("dit.0.0", "decoder"): (TensorSpec((48, 17, 11), "float32"), "shared_memory", 2),
        ("decoder", "publisher"): (TensorSpec((4, 408, 176), "uint8"), "shared_memory", 2),
        ("aligner", "publisher"): (TensorSpec((4000,), "float32"), "local", 2),
    }


@pytest.mark.parametrize(
    ("device", "standby", "stages"),
    [
        ("cpu", "none", []),
        ("cpu", "room", [("room",)]),
        ("cuda", "room", [("room",)]),
        ("cuda", "all", [("room",), ("dit.0.0", "decoder")]),
    ],
)
def test_who_stands_by_for_whom(device: str, standby: str, stages: list[tuple[str, ...]]) -> None:
    topology = plan_topology(Profile(model="small", device=device, standby=standby))
    assert [found.stages for found in topology.standbys] == stages


def test_57b_on_four_gpus() -> None:
    topology = plan_topology(load_profile("h200x4"))
    assert [bundle.get("GPU", 0) for bundle in topology.bundles] == [0, 1, 1, 1, 1, 0]
    (latent,) = topology.outputs("dit.0.0")
    assert (latent.spec, latent.kind) == (TensorSpec((16, 88, 136), "bfloat16"), "nccl")
    assert [edge.target for edge in topology.outputs("aligner")] == ["dit.0.0", "dit.0.1", "dit.0.2", "publisher"]
    (frames,) = topology.outputs("decoder")
    assert (frames.spec, frames.kind) == (TensorSpec((4, 1056, 1088), "uint8"), "shared_memory")


@pytest.mark.parametrize("pipeline, sequence, decoder", itertools.product([1, 2, 3, 4], [1, 2, 4], [0, 1]))
def test_the_invariants_of_every_plan(pipeline: int, sequence: int, decoder: int) -> None:
    plan = ParallelPlan(pipeline, sequence, decoder)
    topology = plan_topology(Profile(model="reference-57b", device="cuda", dtype="bfloat16", plan=plan))
    roles = [role for stage in topology.stages for role in stage.roles]
    assert len({role.name for role in roles}) == len(roles)
    assert len({edge.name for edge in topology.edges}) == len(topology.edges)
    # Every layer belongs to one shard of each sequence group's rank, and none is left over.
    for rank in range(sequence):
        shards = [r.shard.layers for r in roles if r.shard is not None and r.shard.rank == rank]
        assert [layer for a, b in shards for layer in range(a, b)] == list(range(60))
    # Edges lead onward, from an earlier span to a later one, and every role but the last sends to someone.
    span = {role.name: role.span for role in roles}
    assert all(span[edge.source] < span[edge.target] for edge in topology.edges)
    assert sorted(set(span.values())) == list(range(len(topology.spans)))
    for role in roles:
        assert topology.inputs(role.name) or role.kind == "aligner"
        # Ranks above 0 of the last group send nothing: rank 0 has the whole latent.
        last_group = role.shard is not None and role.span == pipeline and role.shard.rank > 0
        assert topology.outputs(role.name) or role.kind == "publisher" or last_group
    # A chunk's sound waits where its pictures are waited for, as long as the way is.
    (pcm,) = [edge for edge in topology.edges if edge.port == "pcm"]
    assert pcm.kind == "local" and pcm.slots == pipeline + 1 + decoder
    hidden = [edge for edge in topology.edges if edge.port == "hidden"]
    assert len(hidden) == (pipeline - 1) * sequence
    assert all(edge.spec.shape == (shard_rows(2992, sequence), 7680) for edge in hidden)
    gpus = sum(bundle.get("GPU", 0) for bundle in topology.bundles)
    assert gpus == pipeline * sequence + decoder


def test_a_decoder_over_two_gpus() -> None:
    """Each half has the whole latent, the first sends whole frames."""
    topology = plan_topology(Profile(model="reference-57b", device="cuda", plan=ParallelPlan(1, 2, 2)))
    names = [stage.name for stage in topology.stages]
    assert names == ["room", "dit.0.0", "dit.0.1", "decoder", "decoder.1"]
    assert [bundle.get("GPU", 0) for bundle in topology.bundles] == [0, 1, 1, 1, 1]
    assert topology.spans == ["aligner", "dit.0", "decoder", "publisher"]
    assert [topology.stages[i].roles[0].band for i in (3, 4)] == [0, 1]
    (first,), (second,) = topology.inputs("decoder"), topology.inputs("decoder.1")
    assert first.source == second.source == "dit.0.0" and first.spec == second.spec
    assert [edge.target for edge in topology.outputs("decoder")] == ["publisher"]
    assert not topology.outputs("decoder.1")
    (pcm,) = [edge for edge in topology.edges if edge.port == "pcm"]
    assert pcm.slots == 3, "two halves are one place"


def test_processes_that_share_a_gpu_do_not_use_nccl() -> None:
    profile = Profile(model="small", device="cuda", gpus=0.25, plan=ParallelPlan(1, 1, 1))
    assert {edge.kind for edge in plan_topology(profile).edges} == {"shared_memory", "local"}


def test_a_decoder_without_a_process_of_its_own() -> None:
    topology = plan_topology(Profile(model="small", plan=ParallelPlan(1, 1, 0)))
    assert [[role.name for role in stage.roles] for stage in topology.stages] == [
        ["aligner", "publisher"],
        ["dit.0.0", "decoder"],
    ]
    (latent,) = topology.inputs("decoder")
    assert latent.kind == "local"


@pytest.mark.parametrize(
    "model, device, plan, message",
    [
        ("small", "cpu", ParallelPlan(2, 1, 1), "concat_previous"),
        ("small", "cpu", ParallelPlan(0, 1, 1), "at least 1"),
        ("small", "cpu", ParallelPlan(1, 1, 2), "decoder must be 0 or 1: only the Wan VAE's rows"),
        ("reference-57b", "cuda", ParallelPlan(1, 1, -1), "decoder must be 0 or 1"),
        ("reference-57b", "cuda", ParallelPlan(1, 1, 3), "decoder must divide the 88 rows of a latent"),
        ("reference-57b", "cuda", ParallelPlan(1, 7, 1), "number of heads, 60"),
        ("reference-57b", "cuda", ParallelPlan(10, 1, 1), "pipeline is at most 9"),
        ("reference-57b", "cuda", ParallelPlan(61, 1, 1), "number of layers, 60"),
        ("no-such-model", "cpu", ParallelPlan(), "no model"),
    ],
)
def test_impossible_plans_are_refused(model: str, device: str, plan: ParallelPlan, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_topology(Profile(model=model, device=device, plan=plan))


@pytest.mark.parametrize(
    "text, message",
    [
        ("model: small\ndevice: tpu\n", "device must be cpu or cuda"),
        ("model: small\ngpus: 2\n", "gpus must be 1 or a share"),
        ("model: small\nthreads: 0\n", "threads must be at least 1"),
        ("model: small\nprecision: fp4\n", "precision must be bf16 or fp8"),
        ("model: small\nplan: {pipline: 1}\n", "unknown key 'plan.pipline'; did you mean 'pipeline'"),
        ("device: cpu\n", "missing key 'model'"),
        ("model: small\nflight: many\n", "flight"),
    ],
)
def test_bad_profiles_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_profile(str(path))


def test_a_model_without_weights_is_served_only_if_the_profile_says_so() -> None:
    for name in drawn_profiles():
        check_weights(plan_topology(load_profile(name)))
    check_weights(plan_topology(Profile(model="reference-57b", random_weights=True)))
    with pytest.raises(UserError, match=r"model 'reference-57b' has no trained weights.*set random_weights: true"):
        check_weights(plan_topology(Profile(model="reference-57b")))


def test_a_model_with_a_window_makes_pictures_in_one_process_and_has_a_clock_of_its_own() -> None:
    topology = plan_topology(Profile(model="leaptalk", plan=ParallelPlan(1, 1, 0), random_weights=True))
    assert topology.cuts and topology.spans == ["aligner", "generator", "publisher"]
    assert [[role.kind for role in stage.roles] for stage in topology.stages] == [
        ["aligner", "publisher"],
        ["generator"],
    ]
    assert {edge.port: (edge.spec.shape, edge.slots) for edge in topology.edges} == {
        "heard": ((128_000,), 2),
        "frames": ((28, 768, 512), 3),
        "pcm": ((26_880,), 4),
    }
    with pytest.raises(UserError, match=r"runs in one process: set plan to \{pipeline: 1, sequence: 1, decoder: 0\}"):
        plan_topology(Profile(model="leaptalk", random_weights=True))
    with pytest.raises(UserError, match="flight is 0 or 4"):
        plan_topology(Profile(model="leaptalk", plan=ParallelPlan(1, 1, 0), flight=2))


def test_an_unknown_profile_is_met_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'laptop'"):
        load_profile("labtop")


@pytest.mark.parametrize("model, plan", [("small", ParallelPlan(1, 2, 1)), ("reference-57b", ParallelPlan(1, 1, 2))])
def test_what_is_split_needs_whole_gpus(model: str, plan: ParallelPlan) -> None:
    with pytest.raises(UserError, match="whole GPUs"):
        plan_topology(Profile(model=model, device="cuda", gpus=0.5, plan=plan))


def test_rows_of_a_shard() -> None:
    assert [shard_rows(2992, n) for n in (1, 2, 3, 4)] == [2992, 1504, 1008, 752]
    assert shard_rows(187, 1) == 187


def test_needs_no_ray() -> None:
    import subprocess

    modules = "actors.pipeline.topology, actors.pipeline.loop, actors.room.factory"
    code = f"import sys, {modules}; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
