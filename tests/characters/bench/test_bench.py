"""What can be checked of the step's measurement without a GPU."""

import re
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from characters.bench import check, launch, soak
from characters.bench.alone import AloneExchange
from characters.bench.breakdown import IDLE, OTHER, kind_of, share_out
from characters.bench.step import Job, step_flops
from characters.cli.bench_step import step
from characters.errors import UserError
from characters.model.config import DiTConfig, ModelConfig, load_model_config
from characters.model.plan import ParallelPlan, shards
from kernels.fp8 import FP8

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    height=64, width=64, latent_channels=4, latent_stride=8, sink=1, ring=2,
    dit=DiTConfig(dim=64, ffn_dim=128, num_heads=4, num_layers=3, patch=2, text_dim=32),
)  # fmt: skip
JOB = Job(CONFIG, ParallelPlan(), alone=False)


def test_operations_of_a_step_are_those_of_the_design():
    config = load_model_config("reference-57b")
    for plan in (ParallelPlan(1, 1), ParallelPlan(1, 3), ParallelPlan(3, 1), ParallelPlan(2, 2)):
        whole = sum(step_flops(config, shard) for shard in shards(plan, config))
        assert whole / 1e12 == pytest.approx(296 + 16.5 * 9, rel=0.005)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_qqtst_128x256_128x4_2x1_v_bz_coopA_bias_TNT", "products"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>", "attention"),
        ("_attend", "attention"),
        ("_cross_attend_rms", "attention"),
        ("_write_qkv", "ring write"),
        ("_anchor_sink", "ring write"),
        ("_residual_norm", "norm"),
        ("_gelu", "GELU"),
        ("_scatter_rows", "exchange"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "exchange"),
        ("void at::native::elementwise_kernel<...>", "other"),
    ],
)
def test_kernels_are_known_by_their_names(kernel, kind):
    assert kind_of(kernel) == kind


def test_kernels_that_run_together_count_once() -> None:
    spent = share_out(
        [
            ("_gelu", 9.0, 10.0),
            ("flash_fwd", 0.0, 4.0),
            ("flash_fwd_combine", 3.0, 5.0),  # a millisecond of it beside the one before
            ("nvjet", 3.5, 4.5),  # all of it beside others
            ("something", 6.0, 8.0),
        ]
    )
    assert spent == {**dict.fromkeys(spent, 0.0), "attention": 5.0, OTHER: 2.0, IDLE: 2.0, "GELU": 1.0}


def test_a_rank_alone_has_memory_for_what_it_sends_and_data_for_what_it_misses():
    shared = AloneExchange(3, "cpu").share((2, 32, 4, 16), FP8)
    assert len(shared) == 3 and len({x.data_ptr() for x in shared}) == 3
    values = shared[0].float()
    assert values.isfinite().all() and 20 < values.std() < 80


@torch.inference_mode()
def test_the_check_compares_precisions_layer_by_layer():
    lines: list[str] = []
    check._compare(JOB, CPU, list(check.VARIANTS), check.SHORT, lines.append)
    assert [line.split(":")[0].strip() for line in lines] == ["layer 1", "layer 2", "latent"]
    found = {name: float(value) for name, value in re.findall(r"(bf16|fp8 static|fp8 dynamic) (\d\.\d+)", lines[-1])}
    assert 0 < found["bf16"] < 0.02 < found["fp8 static"] < 0.1
    assert found["fp8 dynamic"] < 0.1


@torch.inference_mode()
def test_the_check_finds_ring_and_sink_exact():
    lines: list[str] = []
    check._check_ring(JOB, CPU, lines.append)
    assert "10 steps" in lines[0] and " 0 bytes changed" in lines[0] and " 0 of the sink" in lines[1]


def test_the_check_compares_a_plan_with_one_process(capfd):
    check._check_plan(replace(JOB, plan=ParallelPlan(sequence=2), device="cpu"), print)
    lines = capfd.readouterr().out.splitlines()
    heads = [re.sub(r" after .*|:.*", "", line) for line in lines]
    progress = ["  ready", *(f"  chunk {chunk} of 12" for chunk in (4, 8, 12))]
    plan = "plan pipeline=1,sequence=2"
    assert heads == [
        f"{plan}, first on one GPU", *progress, "then on 2", *progress,
        *(f"{plan}, rank {rank}, against one GPU, by chunk" for rank in (0, 1)),
    ]  # fmt: skip
    for line in lines[-2:]:
        errors = [float(error) for error in line.rpartition(": ")[2].split()]
        assert len(errors) == check.PLANNED and max(errors) < 0.05


def test_graphs_are_gone_before_their_group_closes(monkeypatch):
    """NCCL waits for ever for the end of a graph that has captured one of its collectives."""

    class Graph:
        def __init__(self):
            self.cycle = self

    graphs = []

    def work(job, group, progress):
        graph = Graph()
        graphs.append(weakref.ref(graph))
        return "result"

    def close(group):
        assert graphs[0]() is None
        graphs.append("closed")

    monkeypatch.setattr(launch.Group, "close", close)
    assert launch.run(work, replace(JOB, device="cpu")) == ["result"] and graphs[1] == "closed"


def test_without_a_gpu_there_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    result = CliRunner().invoke(step, ["--plan", "sequence=3"])
    assert isinstance(result.exception, UserError) and "PyTorch sees none" in str(result.exception)


def test_cycles_count_where_one_multiprocessor_read_both_ends(monkeypatch):
    class Counter:
        def __init__(self, readings, device):
            assert (readings, device) == (4, CPU)
            self.made = 0

        def read(self):
            self.made += 1

        def readings(self):
            assert self.made == 4
            return torch.tensor([100, 150, 1000, 7]), torch.tensor([0, 0, 0, 3])

    replayed = []
    monkeypatch.setattr(soak, "CycleCounter", Counter)
    counted = soak._Counted(SimpleNamespace(replay=lambda: replayed.append(1)), 2, CPU)
    for _ in range(2):
        counted.replay()
    assert counted.cycles() == [50, None] and len(replayed) == 2


def test_a_soak_compares_steps_with_their_neighbours():
    times = [1.0] * soak.WINDOW + [2.0] * (soak.WINDOW - 2) + [3.0, None] + [5.0]
    steady = soak.steadied(times)
    assert len(steady) == len(times) - 1
    assert steady.pop(-2) == 1.5 and set(steady) == {1.0}
