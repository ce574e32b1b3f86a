"""Which GPU is whose: sessions put on a cluster and taken off it again.

Hosts whose islands have as many free GPUs are the same to the planner. They are looked up by that signature, of which
there are few however many hosts there are, so that a placement takes well under a millisecond on thousands of GPUs.

Where to put a session: where the fewest later sessions of its kind lose their place by it; then where its parts are
closest together; then where least is left free, so that whole islands stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from characters.model.plan import ParallelPlan
from deploy.planning.cluster import Cluster, Gpu, Node
from deploy.planning.cost import Cost, Link, Links
from deploy.planning.option import USABLE, Option

Signature = tuple[int, ...]  # free GPUs of each island of a host
# Of one host: the island of each pipeline group, and of the decoder's GPUs, None without any.
Packing = tuple[tuple[int, ...], int | None]

_Island = tuple[str, int]  # host, number of the island there
# (places lost to others, crossings), island of each group, island of the decoder.
_Found = tuple[tuple[int, int], list[_Island], _Island | None]

_WHOLE = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a session runs.

    Attributes:
        option: the plan that it follows.
        groups: GPUs of each pipeline group.
        decoder: its GPUs; none if it shares the last group's first.
        cost: with the links that the session got.
    """

    option: Option
    groups: tuple[tuple[Gpu, ...], ...]
    decoder: tuple[Gpu, ...]
    cost: Cost

    @property
    def gpus(self) -> list[Gpu]:
        """All of them."""
        return [*(gpu for group in self.groups for gpu in group), *self.decoder]


@dataclass(slots=True)
class _Shared:
    """A GPU that several sessions take turns on: the share and the GB that each fills."""

    loads: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)


class Fleet:
    """A cluster and the sessions on it.

    Args:
        cluster: what there is.
        across_nodes: whether a session's groups and decoder may lie on different hosts.
    """

    def __init__(self, cluster: Cluster, across_nodes: bool = False) -> None:
        self.across_nodes = across_nodes
        self._nodes = {node.name: node for node in cluster.nodes}
        self._free = {node.name: [list(range(size)) for size in node.islands] for node in cluster.nodes}
        self._alike: dict[tuple[str, Signature], dict[str, None]] = {}
        self._lost: set[str] = set()
        self._placed: dict[str, Placement] = {}
        self._shared: dict[str, dict[Gpu, _Shared]] = {}
        self._total = 0
        self._present = cluster.gpus
        for node in cluster.nodes:
            self._list(node)

    def place(self, key: str, option: Option, fresh: bool = True) -> Placement | None:
        """Seat a session, if there is room for it that meets the deadline.

        Args:
            key: of the session; not seated yet.
            option: the plan to follow.
            fresh: whether it may take GPUs that nobody has a part of yet.
        """
        assert key not in self._placed
        placement = None
        if option.shares:
            placement = self._place_shared(option, fresh)
        elif fresh:
            placement = self._place_whole(option)
        if placement is None:
            return None
        self._placed[key] = placement
        if option.shares:
            gpu = placement.groups[0][0]
            taken = self._shared.setdefault(option.kind, {})
            if gpu not in taken:
                self._take([gpu])
                taken[gpu] = _Shared()
            taken[gpu].loads[key], taken[gpu].memory[key] = option.share, placement.cost.memory
        else:
            self._take(placement.gpus)
        return placement

    def release(self, key: str) -> Placement:
        """The session has gone."""
        placement = self._placed.pop(key)
        if not placement.option.shares:
            self._give(placement.gpus)
            return placement
        gpu = placement.groups[0][0]
        shared = self._shared[placement.option.kind]
        del shared[gpu].loads[key], shared[gpu].memory[key]
        if not shared[gpu].loads:
            del shared[gpu]
            self._give([gpu])
        return placement

    def lose(self, node: str) -> list[str]:
        """A host is gone, and the sessions that had a part of them on it are no longer seated.

        Returns:
            Their keys, in the order in which they were seated.
        """
        if node in self._lost:
            return []
        hit = [key for key, p in self._placed.items() if any(gpu.node == node for gpu in p.gpus)]
        for key in hit:
            self.release(key)
        self._unlist(self._nodes[node])
        self._lost.add(node)
        self._present -= self._nodes[node].gpus
        return hit

    def restore(self, node: str) -> None:
        """A host is back, empty."""
        if node in self._lost:
            self._lost.discard(node)
            self._present += self._nodes[node].gpus
            self._list(self._nodes[node])

    def placement(self, key: str) -> Placement | None:
        """Where a session is, if it is seated."""
        return self._placed.get(key)

    def placements(self) -> dict[str, Placement]:
        """All that are seated."""
        return dict(self._placed)

    def predicted(self, key: str) -> float:
        """Milliseconds a chunk at the 99th percentile, with everybody who shares the session's GPU."""
        placement = self._placed[key]
        if not placement.option.shares:
            return placement.cost.p99
        gpu = placement.groups[0][0]
        return sum(self._shared[placement.option.kind][gpu].loads.values()) * placement.option.deadline

    @property
    def gpus(self) -> int:
        """On hosts that are there."""
        return self._present

    @property
    def free(self) -> int:
        """GPUs that nobody has a part of."""
        return self._total

    @property
    def busy(self) -> int:
        """GPUs that somebody has at least a part of."""
        return self.gpus - self.free

    def _place_shared(self, option: Option, fresh: bool) -> Placement | None:
        best: Gpu | None = None
        fullest = -1.0
        room = USABLE * option.rates.memory.value
        for gpu, shared in self._shared.get(option.kind, {}).items():
            load = sum(shared.loads.values())
            fits = load + option.share <= _WHOLE and sum(shared.memory.values()) + option.cost.memory <= room
            if fits and load > fullest:
                best, fullest = gpu, load
        if best is None:
            start = self._tightest(option.kind, 1, {}) if fresh else None
            if start is None:
                return None
            best = Gpu(start[0], start[1], self._free[start[0]][start[1]][0])
        return Placement(option, ((best,),), (), option.cost)

    def _place_whole(self, option: Option) -> Placement | None:
        found = [p for p in (self._in_one_node(option), self._over_nodes(option)) if p is not None]
        for _, islands, decoder in sorted(found, key=lambda f: f[0]):
            links = _links(islands, decoder)
            cost = option.cost_over(links)
            if cost.p99 > option.deadline:
                continue
            left = {place: iter(self._free[place[0]][place[1]]) for place in {*islands, decoder} if place is not None}
            size, decoders = option.plan.sequence, option.plan.decoder
            groups = tuple(tuple(Gpu(*at, next(left[at])) for _ in range(size)) for at in islands)
            last = tuple(Gpu(*decoder, next(left[decoder])) for _ in range(decoders)) if decoder is not None else ()
            return Placement(option, groups, last, cost)
        return None

    def _in_one_node(self, option: Option) -> _Found | None:
        plan = option.plan
        shape = (plan.sequence, plan.pipeline, plan.decoder)
        best: tuple[tuple[int, int, int], Signature, Packing] | None = None
        for (kind, signature), nodes in self._alike.items():
            if kind != option.kind or not nodes or (packing := pack(signature, *shape)) is None:
                continue
            after = _after(signature, packing, shape)
            lost = _lost(signature, after, shape, self.across_nodes)
            rank = (lost, _crossings(packing), sum(signature))
            if best is None or rank < best[0]:
                best = rank, signature, packing
        if best is None:
            return None
        (lost, crossings, _), signature, (groups, decoder) = best
        node = next(iter(self._alike[option.kind, signature]))
        return (lost, crossings), [(node, i) for i in groups], None if decoder is None else (node, decoder)

    def _over_nodes(self, option: Option) -> _Found | None:
        if not self.across_nodes:
            return None
        plan, taken, groups = option.plan, dict[str, list[int]](), list[_Island]()
        for _ in range(plan.pipeline):
            near = groups[-1] if groups else None
            if near is not None and taken[near[0]][near[1]] >= plan.sequence:
                at: _Island | None = near
            else:
                at = self._tightest(option.kind, plan.sequence, taken)
            if at is None:
                return None
            self._count(taken, at, plan.sequence)
            groups.append(at)
        decoder = None
        if plan.decoder:
            decoder = self._leftover(option.kind, plan, taken, groups[-1])
            if decoder is None:
                return None
            self._count(taken, decoder, plan.decoder)
        lost = -plan.pipeline
        for name, after in taken.items():
            before = self._signature(name)
            lost += sum(b // plan.sequence - a // plan.sequence for b, a in zip(before, after, strict=True))
        return (lost, _links(groups, decoder).crossings), groups, decoder

    def _tightest(self, kind: str, size: int, taken: dict[str, list[int]]) -> _Island | None:
        """The island with the fewest free GPUs that still has `size`; fuller hosts first among equals."""
        best: tuple[tuple[int, int], _Island] | None = None
        for name, signature in self._candidates(kind, taken):
            for i, free in enumerate(signature):
                if free >= size and (best is None or (free, sum(signature)) < best[0]):
                    best = (free, sum(signature)), (name, i)
        return best[1] if best else None

    def _leftover(self, kind: str, plan: ParallelPlan, taken: dict[str, list[int]], near: _Island) -> _Island | None:
        """GPUs for the decoder that the fewest groups would miss; as near to `near` as there are such."""
        best: tuple[tuple[int, int, int], _Island] | None = None
        size = plan.sequence
        for name, signature in self._candidates(kind, taken):
            for i, free in enumerate(signature):
                if free >= plan.decoder:
                    far = 0 if (name, i) == near else 1 if name == near[0] else 2
                    rank = (free // size - (free - plan.decoder) // size, far, free)
                    if best is None or rank < best[0]:
                        best = rank, (name, i)
        return best[1] if best else None

    def _candidates(self, kind: str, taken: dict[str, list[int]]) -> Iterator[tuple[str, Signature]]:
        """One host of every signature, and those that parts of the session are on already."""
        for name, islands in taken.items():
            yield name, tuple(islands)
        for (of, signature), nodes in self._alike.items():
            if of == kind and (free := next((n for n in nodes if n not in taken), None)) is not None:
                yield free, signature

    def _count(self, taken: dict[str, list[int]], at: _Island, size: int) -> None:
        taken.setdefault(at[0], list(self._signature(at[0])))[at[1]] -= size

    def _take(self, gpus: list[Gpu]) -> None:
        for name in {gpu.node for gpu in gpus}:
            self._unlist(self._nodes[name])
        for gpu in gpus:
            self._free[gpu.node][gpu.island].remove(gpu.index)
        for name in {gpu.node for gpu in gpus}:
            self._list(self._nodes[name])

    def _give(self, gpus: list[Gpu]) -> None:
        for name in {gpu.node for gpu in gpus}:
            self._unlist(self._nodes[name])
        for gpu in gpus:
            self._free[gpu.node][gpu.island].append(gpu.index)
            self._free[gpu.node][gpu.island].sort()
        for name in {gpu.node for gpu in gpus}:
            self._list(self._nodes[name])

    def _signature(self, name: str) -> Signature:
        return tuple(len(island) for island in self._free[name])

    def _list(self, node: Node) -> None:
        signature = self._signature(node.name)
        self._alike.setdefault((node.kind, signature), {})[node.name] = None
        self._total += sum(signature)

    def _unlist(self, node: Node) -> None:
        signature = self._signature(node.name)
        nodes = self._alike[node.kind, signature]
        del nodes[node.name]
        if not nodes:
            del self._alike[node.kind, signature]
        self._total -= sum(signature)


@lru_cache(maxsize=100_000)
def pack(signature: Signature, sequence: int, pipeline: int, decoder: int) -> Packing | None:
    """Put one session on one host: so that most others of its kind still fit, then so that what is left free lies
    together, for those of other kinds, and then with the fewest hops between islands.

    Args:
        signature: free GPUs of each island.
        sequence, pipeline, decoder: see `characters.model.plan.ParallelPlan`.
    """
    shape = (sequence, pipeline, decoder)
    packings = _packings(signature, *shape)
    if len(packings) < 2:
        return packings[0] if packings else None

    def rank(packing: Packing) -> tuple[int, int, int]:
        after = _after(signature, packing, shape)
        return -capacity(after, *shape), -sum(free**2 for free in after), _crossings(packing)

    return min(packings, key=rank)


@lru_cache(maxsize=100_000)
def capacity(signature: Signature, sequence: int, pipeline: int, decoder: int) -> int:
    """Sessions that one host takes, one after another."""
    shape = (sequence, pipeline, decoder)
    after = (_after(signature, packing, shape) for packing in _packings(signature, *shape))
    # What is left is the same host whatever the order of its islands.
    return max((1 + capacity(tuple(sorted(left)), *shape) for left in after), default=0)


def _packings(signature: Signature, sequence: int, pipeline: int, decoder: int) -> list[Packing]:
    """Ways worth comparing: all in one island; groups where the others are, or where they leave least over."""
    found: list[Packing] = []
    whole = sequence * pipeline + decoder
    if fitting := [i for i, free in enumerate(signature) if free >= whole]:
        at = min(fitting, key=lambda i: signature[i])
        found.append(((at,) * pipeline, at if decoder else None))
    for together in (True, False):
        left, groups = list(signature), list[int]()
        for n in range(pipeline):
            roomy = [i for i, free in enumerate(left) if free >= sequence]
            if not roomy:
                return found
            if together and groups and groups[-1] in roomy:
                at = groups[-1]
            elif together:
                at = max(roomy, key=lambda i: (min(left[i] // sequence, pipeline - n), -left[i]))
            else:
                at = min(roomy, key=lambda i: (left[i] % sequence, left[i]))
            left[at] -= sequence
            groups.append(at)
        spare = [i for i, free in enumerate(left) if free >= decoder]
        if not spare:
            continue
        missed = {i: left[i] // sequence - (left[i] - decoder) // sequence for i in spare}
        last = min(spare, key=lambda i: (missed[i], i != groups[-1], left[i])) if decoder else None
        found.append((tuple(groups), last))
    return found


def _after(signature: Signature, packing: Packing, shape: tuple[int, int, int]) -> Signature:
    left = list(signature)
    groups, decoder = packing
    for at in groups:
        left[at] -= shape[0]
    if decoder is not None:
        left[decoder] -= shape[2]
    return tuple(left)


def _lost(before: Signature, after: Signature, shape: tuple[int, int, int], across_nodes: bool) -> int:
    """Places that others lose besides the one that is taken: of sessions, or of groups where hosts can be mixed."""
    sequence, pipeline, _ = shape
    if across_nodes:
        return sum(b // sequence for b in before) - sum(a // sequence for a in after) - pipeline
    return capacity(before, *shape) - capacity(after, *shape) - 1


def _crossings(packing: Packing) -> int:
    groups, decoder = packing
    return _links([("", i) for i in groups], None if decoder is None else ("", decoder)).crossings


def _links(groups: list[_Island], decoder: _Island | None) -> Links:
    def between(a: _Island, b: _Island) -> Link:
        return "island" if a == b else "host" if a[0] == b[0] else "network"

    hops = tuple(between(a, b) for a, b in pairwise(groups))
    return Links(hops, "island" if decoder is None else between(groups[-1], decoder))


def sessions_held(cluster: Cluster, option: Option, across_nodes: bool = False) -> int:
    """Sessions of one plan that an empty cluster holds."""
    if option.shares:
        return option.per_gpu * sum(node.gpus for node in cluster.nodes if node.kind == option.kind)
    fleet = Fleet(cluster, across_nodes)
    count = 0
    while fleet.place(str(count), option) is not None:
        count += 1
    return count
