from __future__ import annotations

import random
from pathlib import Path

import pytest

from characters.errors import UserError
from deploy.planning.admission import Admission, Admitted, PlannedPlaces, Queued, Refused, Seats
from deploy.planning.cluster import parse_cluster
from deploy.planning.fleet import Fleet
from deploy.planning.waiting import AdmissionConfig, Lengths, Tenant, load_admission
from tests.deploy.clock import Clock
from tests.deploy.planning.known import DEADLINE_MS, LARGE, option, small


class OnFleet(Admission):
    """An admission to GPUs."""

    def __init__(self, fleet: Fleet, config: AdmissionConfig, clock: Clock) -> None:
        options = {LARGE: [option(3, 1, 1)], "small": [small()]}
        super().__init__(PlannedPlaces(fleet, options), config, clock, overtaking=30.0)
        self.fleet = fleet

    def lose(self, node: str) -> tuple[list[Admitted], list[Queued]]:
        return self.displace(self.fleet.lose(node))

    def restore(self, node: str) -> list[Admitted]:
        self.fleet.restore(node)
        return self.call()


def made(gpus: str = "3x8xH200/4", clock: Clock | None = None, **config: object) -> OnFleet:
    return OnFleet(Fleet(parse_cluster(gpus)), AdmissionConfig(**config), clock or Clock())  # type: ignore[arg-type]


def test_six_fit_and_the_seventh_starts_when_one_leaves() -> None:
    clock = Clock()
    admission = made(clock=clock)
    assert all(isinstance(admission.ask(str(i), LARGE), Admitted) for i in range(6))
    clock.now += 20
    assert admission.ask("7", LARGE) == Queued("7", 1, pytest.approx(100, abs=1))
    assert [a.key for a in admission.leave("3")] == ["7"]
    assert admission.leave("nobody") == []


def test_a_lost_host_moves_its_sessions_or_puts_them_first() -> None:
    admission = made("2x8xH200/4")
    for key in "abc":
        admission.ask(key, LARGE)
    full, other = "node0", "node1"
    hit = [key for key, p in admission.fleet.placements().items() if p.gpus[0].node == full]
    assert len(hit) == 2
    admission.ask("d", LARGE)
    admission.ask("late", LARGE)
    admission.leave("d")  # its seat goes to who is late
    admission.leave("late")
    moved, waiting = admission.lose(full)
    assert [m.key for m in moved] == hit[:1]
    placement = admission.fleet.placement(hit[0])
    assert placement is not None
    assert placement.gpus[0].node == other
    assert [(w.key, w.position) for w in waiting] == [(hit[1], 1)]
    admission.ask("later", LARGE)
    assert admission.standing("later").position == 2, "who lost the seat is ahead"
    assert [a.key for a in admission.restore(full)] == [hit[1], "later"]
    assert admission.fleet.busy == 4 * admission.running == 16


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    admission = made("4xH200", queue=1, typical=60.0)
    admission.ask("a", LARGE)
    admission.ask("b", LARGE)
    refused = admission.ask("c", LARGE)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retry_after) == ("queue_full", 60)
    nothing = admission.ask("d", "other")
    assert isinstance(nothing, Refused)
    assert (nothing.code, nothing.retry_after) == ("no_plan", None)


def test_a_key_has_its_quota_and_its_priority() -> None:
    admission = made("4xH200", tenants={"gold": Tenant(5), "tiny": Tenant(0, 1)})
    admission.ask("a", LARGE, "tiny")
    refused = admission.ask("b", LARGE, "tiny")
    assert isinstance(refused, Refused)
    assert refused.code == "quota"
    assert admission.ask("c", LARGE) == Queued("c", 1, pytest.approx(120, abs=1))
    gold = admission.ask("d", LARGE, "gold")
    assert isinstance(gold, Queued)
    assert gold.position == 1
    assert admission.standing("c").position == 2
    assert [x.key for x in admission.leave("a")] == ["d"]
    assert isinstance(admission.ask("e", LARGE, "tiny"), Queued), "its session is over"


def test_who_needs_no_fresh_gpu_passes_and_others_do_for_a_while_only() -> None:
    clock = Clock()
    admission = made("6xH200", clock=clock)
    admission.ask("large", LARGE)
    assert isinstance(admission.ask("waits", LARGE), Queued)
    assert isinstance(admission.ask("passes", "small"), Admitted), "what is free is of no use to the one ahead"
    clock.now += 31
    assert isinstance(admission.ask("shares", "small"), Admitted), "takes no fresh GPU"
    admission.leave("passes")
    admission.leave("shares")
    assert isinstance(admission.ask("no more", "small"), Queued)
    assert [a.key for a in admission.leave("large")] == ["waits", "no more"]


def test_a_small_session_that_would_break_the_others_is_not_let_in() -> None:
    admission = made("1xH200")
    for i in range(small().per_gpu):
        assert isinstance(admission.ask(str(i), "small"), Admitted)
    assert isinstance(admission.ask("too many", "small"), Queued)
    assert all(admission.fleet.predicted(key) <= DEADLINE_MS for key in admission.fleet.placements())


def test_a_pipeline_is_a_seat_and_who_loses_one_is_next() -> None:
    seats = Seats()
    admission = Admission(seats, AdmissionConfig(), Clock())
    assert isinstance(admission.ask("early", ""), Queued)
    seats.count = 2
    assert admission.call() == [Admitted("early")]
    assert admission.ask("second", "") == Admitted("second")
    assert isinstance(admission.ask("third", ""), Queued)
    seats.release("early")
    seats.count = 1
    assert admission.displace(["early"]) == ([], [Queued("early", 1, pytest.approx(120, abs=1))])
    assert admission.leave("second") == [Admitted("early")]
    seats.reason = "too slow"
    refused = admission.ask("fourth", "")
    assert isinstance(refused, Refused)
    assert (refused.code, refused.message, refused.retry_after) == ("no_plan", "too slow", None)


def test_admission_is_configured_by_a_file(tmp_path: Path) -> None:
    assert load_admission("default") == AdmissionConfig()
    own = tmp_path / "own.yaml"
    own.write_text("everybody: {sessions: 1}\ntenants:\n  gold: {priority: 10, sessions: 0}\n")
    found = load_admission(str(own))
    assert (found.tenant("gold").priority, found.tenant("somebody").sessions) == (10, 1)
    own.write_text("tenants:\n  gold: {prio: 10}\n")
    with pytest.raises(UserError, match=r"unknown key 'tenants\.gold\.prio'"):
        load_admission(str(own))
    with pytest.raises(UserError, match="did you mean 'default'"):
        load_admission("defalt")


def test_a_bound_on_a_sessions_gpus_leaves_out_the_larger_plans() -> None:
    fleet, options = Fleet(parse_cluster("8xH200")), {LARGE: [option(1, 6, 1), option(3, 1, 1)]}
    places = PlannedPlaces(fleet, options, most_gpus=4)
    assert places.lacking(LARGE) is None and places.place("a", LARGE, fresh=True)
    assert fleet.busy == 4
    assert PlannedPlaces(fleet, options, most_gpus=3).lacking(LARGE) is not None


@pytest.mark.parametrize("key", ["patience: 30", "most_gpus: 4", "across_nodes: true"])
def test_what_does_not_act_in_serving_is_refused(tmp_path: Path, key: str) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"queue: 10\n{key}\n")
    with pytest.raises(UserError, match="unknown key"):
        load_admission(str(own))


def test_waits_come_from_measured_lengths() -> None:
    lengths = Lengths(120.0)
    assert lengths.wait(1, [20.0, 50.0]) == pytest.approx(70, abs=1)
    assert lengths.wait(2, [20.0, 50.0]) == pytest.approx(100, abs=1)
    assert lengths.wait(3, [20.0, 50.0]) == pytest.approx(190, abs=1), "after a whole round"
    assert lengths.wait(1, []) == float("inf")
    assert lengths.wait(1, [500.0]) == pytest.approx(5, abs=1), "overdue"
    rng = random.Random(1)
    for _ in range(200):
        lengths.add(rng.expovariate(1 / 300))
    assert lengths.typical == pytest.approx(300, rel=0.2)
    crowd = [rng.expovariate(1 / 300) for _ in range(100)]
    assert lengths.wait(1, crowd) < 30, "among many, somebody always leaves soon"
    waits = [lengths.wait(place, crowd) for place in range(1, 150)]
    assert waits == sorted(waits)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_nobody_is_lost_and_nobody_misses(seed: int) -> None:
    rng, clock = random.Random(seed), Clock()
    admission = made(rng.choice(["3x8xH200/4", "2x4xH200", "5x8xH200"]), clock, queue=8, tenants={"t": Tenant(1, 3)})
    nodes = sorted(admission.fleet._nodes)
    inside: set[str] = set()
    waiting: set[str] = set()
    for step in range(200):
        clock.now += rng.expovariate(1 / 5)
        act, key = rng.random(), str(step)
        let_in = []
        if act < 0.55:
            match admission.ask(key, rng.choice([LARGE, LARGE, "small"]), rng.choice(["", "t"])):
                case Admitted():
                    inside.add(key)
                case Queued() as queued:
                    waiting.add(key)
                    assert 1 <= queued.position <= 8 + len(inside)
                    assert queued.wait > 0
                case Refused() as refused:
                    assert refused.retry_after is not None
                    assert 1 <= refused.retry_after <= 600
        elif act < 0.9 and inside | waiting:
            gone = rng.choice(sorted(inside | waiting))
            let_in = admission.leave(gone)
            inside.discard(gone)
            waiting.discard(gone)
        elif act < 0.95:
            let_in, displaced = admission.lose(rng.choice(nodes))
            waiting |= {d.key for d in displaced}
            inside -= {d.key for d in displaced}
        else:
            let_in = admission.restore(rng.choice(nodes))
        inside |= {a.key for a in let_in}
        waiting -= {a.key for a in let_in}
        assert inside == set(admission.fleet.placements())
        assert waiting == {t.key for t in admission.queue}
        assert all(admission.fleet.predicted(key) <= DEADLINE_MS for key in inside)
    for key in [*waiting, *inside]:
        admission.leave(key)
    for ticket in admission.queue:
        admission.leave(ticket.key)
    for key in admission.fleet.placements():
        admission.leave(key)
    assert admission.fleet.busy == 0
    assert admission.running == 0
