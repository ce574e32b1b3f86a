"""Arrivals, departures and failing hosts, against the planner and the admission that the application uses.

    python -m deploy.planning.simulator --gpus 500x8xH200 --models reference-57b --sessions 1000

Nothing is started: time is simulated, only planning is timed. A GPU is stranded while somebody waits, nobody has a part
of it, and as many GPUs as a waiting session needs are free: then only where they lie keeps the session out.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from characters.model.config import load_model_config
from deploy.planning.admission import Admission, Admitted, PlannedPlaces, Queued, Refused
from deploy.planning.cluster import Cluster, parse_cluster
from deploy.planning.fleet import Fleet
from deploy.planning.option import Option
from deploy.planning.plan import kept, plan
from deploy.planning.waiting import AdmissionConfig, load_admission

T = TypeVar("T")


@dataclass(frozen=True)
class Load:
    """What comes in.

    Attributes:
        sessions: that would run on average if there were room for all.
        length: mean seconds of a session; exponential.
        seconds: simulated.
        failures: of a host, one in so many seconds of its own time; 0 = none.
        repair: mean seconds until it is back.
        patience: mean seconds that a waiting user stays; exponential.
    """

    sessions: float
    length: float = 300.0
    seconds: float = 3600.0
    failures: float = 0.0
    repair: float = 600.0
    patience: float = 600.0


@dataclass(frozen=True)
class Policy:
    """How the simulated cluster is used. The application has none of this: Serve packs each session into one host.

    Attributes:
        across_nodes: whether a session's groups and decoder may lie on different hosts.
        most_gpus: of one session; 0 = as many as the best plan takes.
        overtaking: see `Admission`.
    """

    across_nodes: bool = False
    most_gpus: int = 0
    overtaking: float = 30.0


@dataclass
class Report:
    """What came of it.

    Attributes:
        planning: milliseconds of each call of the admission, of this thread's CPU time.
        admitted, queued, refused: sessions, at arrival.
        moved, displaced: sessions of failed hosts: at once elsewhere, and those that had to wait.
        gave_up: waiting users who left.
        waits: seconds of those who waited and were let in.
        most: sessions at a time.
        used, stranded: shares of GPU time, while the hosts were there.
        worst: the highest prediction for any session at any time, by its deadline.
        left: GPUs that were still taken when everybody had gone.
    """

    planning: list[float] = field(default_factory=list)
    admitted: int = 0
    queued: int = 0
    refused: int = 0
    moved: int = 0
    displaced: int = 0
    gave_up: int = 0
    waits: list[float] = field(default_factory=list)
    most: int = 0
    used: float = 0.0
    stranded: float = 0.0
    worst: float = 0.0
    left: int = 0

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.planning, [50, 99])
        waits = np.asarray(self.waits or [0.0])
        return "\n".join(
            (
                f"planning       median {p50:.3f} ms, p99 {p99:.3f} ms, worst {max(self.planning):.3f} ms",
                f"sessions       {self.admitted} admitted at once, {self.queued} queued, {self.refused} refused, "
                f"{self.gave_up} gave up waiting; at most {self.most} at a time",
                f"waits          median {np.median(waits):.0f} s, p99 {np.percentile(waits, 99):.0f} s",
                f"failed hosts   {self.moved} sessions moved at once, {self.displaced} waited",
                f"GPU time       {self.used:.2%} used, {self.stranded:.3%} stranded",
                f"slowest chunk  predicted {self.worst:.1%} of its deadline at p99",
                f"at the end     {self.left} GPUs still taken",
            )
        )


class Simulation:
    """One run.

    Args:
        cluster: what there is.
        options: by model, see `Admission`.
        config: see `AdmissionConfig`.
        load: what comes in.
        mix: share of arrivals by model.
        seed: of everything random.
        policy: how the cluster is used; `Policy()` if None.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: Mapping[str, list[Option]],
        config: AdmissionConfig,
        load: Load,
        mix: Mapping[str, float],
        seed: int = 0,
        policy: Policy | None = None,
    ) -> None:
        policy = policy or Policy()
        self.now = 0.0
        self.report = Report()
        self.fleet = Fleet(cluster, policy.across_nodes)
        places = PlannedPlaces(self.fleet, options, policy.most_gpus)
        self.admission = Admission(places, config, lambda: self.now, policy.overtaking)
        self._load, self._rng, self._hosts = load, np.random.default_rng(seed), [n.name for n in cluster.nodes]
        self._models, shares = list(mix), np.asarray(list(mix.values()), dtype=float)
        self._shares = shares / shares.sum()
        self._smallest = {model: min(o.gpus for o in found) for model, found in options.items()}
        self._events: list[tuple[float, int, str, str]] = []
        self._order = itertools.count()
        self._asked: dict[str, float] = {}
        self._gpu_seconds = self._used = self._stranded = 0.0

    def run(self) -> Report:
        """Simulate; afterwards everybody leaves."""
        load = self._load
        self._at(self._in(load.length / load.sessions), "arrive", "0")
        if load.failures:
            for host in self._hosts:
                self._at(self._in(load.failures), "fail", host)
        while self._events and self._events[0][0] <= load.seconds:
            then, _, kind, name = heapq.heappop(self._events)
            self._pass(then)
            getattr(self, f"_{kind}")(name)
            self.report.most = max(self.report.most, self.admission.running)
        self._pass(load.seconds)
        for ticket in self.admission.queue:
            self.admission.leave(ticket.key)
        for key in self.fleet.placements():
            self.admission.leave(key)
        report = self.report
        report.used, report.stranded = self._used / self._gpu_seconds, self._stranded / self._gpu_seconds
        report.left = self.fleet.busy
        return report

    def _arrive(self, name: str) -> None:
        load, report = self._load, self.report
        self._at(self._in(load.length / load.sessions), "arrive", str(int(name) + 1))
        model = self._models[self._rng.choice(len(self._models), p=self._shares)]
        decision = self._timed(self.admission.ask, name, model)
        match decision:
            case Admitted():
                report.admitted += 1
                self._begin(decision)
            case Queued():
                report.queued += 1
                self._asked[name] = self.now
                self._at(self._in(load.patience), "give_up", name)
            case Refused():
                report.refused += 1

    def _depart(self, name: str) -> None:
        self._let_in(self._timed(self.admission.leave, name))

    def _give_up(self, name: str) -> None:
        if name in self.admission.queue and name in self._asked:
            self.report.gave_up += 1
            self._let_in(self._timed(self.admission.leave, name))

    def _fail(self, host: str) -> None:
        before = set(self.fleet.placements())
        admitted, waiting = self._timed(lambda: self.admission.displace(self.fleet.lose(host)))
        self.report.moved += sum(a.key in before for a in admitted)
        self.report.displaced += len(waiting)
        self._let_in([a for a in admitted if a.key not in before])
        for moved in admitted:
            self._check(moved.key)
        self._at(self._in(self._load.repair), "repair", host)

    def _repair(self, host: str) -> None:
        self.fleet.restore(host)
        self._let_in(self._timed(self.admission.call))
        self._at(self._in(self._load.failures), "fail", host)

    def _let_in(self, admitted: list[Admitted]) -> None:
        for one in admitted:
            if one.key in self._asked:
                self.report.waits.append(self.now - self._asked.pop(one.key))
                self._begin(one)
            else:  # lost its host before; its departure is set already
                self._check(one.key)

    def _begin(self, admitted: Admitted) -> None:
        self._check(admitted.key)
        self._at(self._in(self._load.length), "depart", admitted.key)

    def _check(self, key: str) -> None:
        """A newcomer changes the prediction of those only whose GPU it shares, and they have the same as it has."""
        placement = self.fleet.placement(key)
        assert placement is not None
        self.report.worst = max(self.report.worst, self.fleet.predicted(key) / placement.option.deadline)

    def _pass(self, then: float) -> None:
        """Time goes on, with the GPUs as they are."""
        span, fleet = then - self.now, self.fleet
        self._gpu_seconds += span * fleet.gpus
        self._used += span * fleet.busy
        if len(self.admission.queue):
            need = min(self._smallest[model] for model in {t.model for t in self.admission.queue})
            self._stranded += span * fleet.free if fleet.free >= need else 0.0
        self.now = then

    def _timed(self, call: Callable[..., T], *arguments: str) -> T:
        began = time.thread_time()
        answer = call(*arguments)
        self.report.planning.append(1e3 * (time.thread_time() - began))
        return answer

    def _in(self, mean: float) -> float:
        return self.now + self._rng.exponential(mean)

    def _at(self, when: float, kind: str, name: str) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, name))


def main() -> None:
    """Simulate what the arguments say and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="500x8xH200", help="see `characters plan --gpus`")
    parser.add_argument("--models", nargs="+", default=["reference-57b"], help="in equal shares")
    parser.add_argument("--sessions", type=float, default=1000.0, help="that would run on average")
    parser.add_argument("--length", type=float, default=300.0, help="mean seconds of a session")
    parser.add_argument("--seconds", type=float, default=3600.0, help="simulated")
    parser.add_argument(
        "--failures", type=float, default=0.0, help="mean seconds between failures of one host; 0: none"
    )
    parser.add_argument("--admission", default="default", help="a name in conf/admission, or a YAML file")
    parser.add_argument("--across-nodes", action="store_true", help="a session may lie on several hosts")
    parser.add_argument("--most-gpus", type=int, default=0, help="of one session; 0: as many as the best plan takes")
    parser.add_argument("--overtaking", type=float, default=30.0, help="seconds for which who waits is overtaken")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cluster = parse_cluster(arguments.gpus)
    config = load_admission(arguments.admission)
    policy = Policy(arguments.across_nodes, arguments.most_gpus, arguments.overtaking)
    options = {
        name: kept(plan(name, load_model_config(name), cluster, policy.across_nodes)) for name in arguments.models
    }
    load = Load(arguments.sessions, arguments.length, arguments.seconds, arguments.failures)
    mix = dict.fromkeys(arguments.models, 1.0)
    print(Simulation(cluster, options, config, load, mix, arguments.seed, policy).run())


if __name__ == "__main__":
    main()
