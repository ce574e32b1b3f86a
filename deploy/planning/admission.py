"""Who may come in. The caller gives the clock.

A session is let in only if there is a placement for it that meets the deadline and leaves everybody else theirs.
Otherwise it is queued, and if the queue is full or its key has no more sessions to give, refused.

Those who lost their GPUs with a host come first, then higher priorities, then arrival. Who comes later may be let in
before if what is free is of no use to those ahead. That ends for a session that has waited as long as `overtaking`:
nobody takes a fresh GPU before it does. The application serves one model, so nobody overtakes in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from deploy.planning.fleet import Fleet
from deploy.planning.option import Option
from deploy.planning.waiting import AdmissionConfig, Lengths, Queue, Ticket

_SOONEST, _LATEST = 1, 600  # seconds of a Retry-After


class Places(Protocol):
    """What sessions are let in to."""

    def lacking(self, model: str) -> str | None:
        """Why no session of the model can ever be let in; None if one can."""
        ...

    def place(self, key: str, model: str, fresh: bool) -> bool:
        """Seat a session, if there is room that meets the deadline; on GPUs that nobody has a part of if `fresh`."""
        ...

    def release(self, key: str) -> None:
        """A session that is seated has gone."""
        ...


class PlannedPlaces:
    """GPUs of a fleet, by plans.

    Args:
        fleet: where sessions run.
        options: by model, the plans that may be used, the best first (see `plan.kept`).
        most_gpus: of one session; 0 = as many as the best plan takes.
    """

    def __init__(self, fleet: Fleet, options: Mapping[str, list[Option]], most_gpus: int = 0) -> None:
        most = most_gpus or math.inf
        self._fleet = fleet
        self._options = {model: [o for o in found if o.gpus <= most] for model, found in options.items()}

    def lacking(self, model: str) -> str | None:
        """See `Places.lacking`."""
        return None if self._options.get(model) else f"no plan of model {model!r} meets the deadline on these GPUs"

    def place(self, key: str, model: str, fresh: bool) -> bool:
        """See `Places.place`."""
        return any(self._fleet.place(key, option, fresh) is not None for option in self._options[model])

    def release(self, key: str) -> None:
        """See `Places.release`."""
        self._fleet.release(key)


class Seats:
    """Loaded pipelines: each takes one session, wherever Serve has put it.

    Attributes:
        count: of them.
        reason: why no session can ever be let in, if so.
    """

    def __init__(self) -> None:
        self.count = 0
        self.reason: str | None = None
        self._taken: set[str] = set()

    def lacking(self, model: str) -> str | None:
        """See `Places.lacking`."""
        return self.reason

    def place(self, key: str, model: str, fresh: bool) -> bool:
        """See `Places.place`. Every seat is one's own."""
        if not fresh or len(self._taken) >= self.count:
            return False
        self._taken.add(key)
        return True

    def hold(self, key: str) -> None:
        """Seat a session that has its pipeline already."""
        self._taken.add(key)

    def release(self, key: str) -> None:
        """See `Places.release`."""
        self._taken.discard(key)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The session may begin."""

    key: str


@dataclass(frozen=True, slots=True)
class Queued:
    """The session waits.

    Attributes:
        key: of the session.
        position: 1 = next.
        wait: estimated seconds; infinite if nothing of its kind runs that could end.
    """

    key: str
    position: int
    wait: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The session may not even wait.

    Attributes:
        key: of the session.
        code: stable; for programs.
        message: for people.
        retry_after: whole seconds; None if trying again does not help.
    """

    key: str
    code: Literal["no_plan", "quota", "queue_full"]
    message: str
    retry_after: int | None


Decision = Admitted | Queued | Refused


@dataclass(slots=True)
class _Running:
    model: str
    tenant: str
    began: float


class Admission:
    """Sessions that run, and sessions that wait.

    Args:
        places: where they run.
        config: see `AdmissionConfig`.
        clock: seconds.
        overtaking: seconds for which a waiting session is overtaken by sessions of other models that need a fresh GPU.
    """

    def __init__(
        self,
        places: Places,
        config: AdmissionConfig,
        clock: Callable[[], float],
        overtaking: float = math.inf,
    ) -> None:
        self.config, self.queue = config, Queue()
        self._overtaking = overtaking
        self.lengths = Lengths(config.typical)
        self._places, self._clock = places, clock
        self._running: dict[str, _Running] = {}
        self._displaced: dict[str, _Running] = {}  # wait, and have run before
        self._held: Counter[str] = Counter()  # sessions of each tenant

    @property
    def running(self) -> int:
        """Sessions that have been let in."""
        return len(self._running)

    def ask(self, key: str, model: str, tenant: str = "") -> Decision:
        """Somebody wants a session.

        Args:
            key: of the session, new.
            model: name.
            tenant: name of the API key it was asked for with.
        """
        assert key not in self._running and key not in self.queue
        if (lacking := self._places.lacking(model)) is not None:
            return Refused(key, "no_plan", lacking, None)
        terms = self.config.tenant(tenant)
        if terms.sessions and self._held[tenant] >= terms.sessions:
            ages = [self._clock() - r.began for r in self._running.values() if r.tenant == tenant]
            message = f"this key has {terms.sessions} session(s) already, and may have no more"
            return Refused(key, "quota", message, _retry_after(self.lengths.wait(1, ages)))
        ticket = self.queue.ticket(key, model, tenant, terms.priority, self._clock())
        ahead = [t for t in self.queue if t < ticket]
        passes = all(t.model != model for t in ahead)
        seated = passes and self._seat(ticket, not any(self._is_next(t) for t in ahead))
        if not seated and len(self.queue) >= self.config.queue:
            return Refused(key, "queue_full", "too many are waiting; try later", _retry_after(self._wait(model, 1)))
        self._held[tenant] += 1
        if seated:
            return Admitted(key)
        self.queue.join(ticket)
        return self.standing(key)

    def restore(self, key: str, model: str, tenant: str, *, seated: bool, displaced: bool = False) -> None:
        """A session that another process let in, or let wait: it is not asked again whether it may.

        Args:
            key, model, tenant: as for `ask`.
            seated: whether it has a place, which is taken already; else it waits.
            displaced: whether it waits because it has lost its place.
        """
        self._held[tenant] += 1
        now = self._clock()
        if seated or displaced:
            (self._running if seated else self._displaced)[key] = _Running(model, tenant, now)
        if not seated:
            self.queue.join(self.queue.ticket(key, model, tenant, self.config.tenant(tenant).priority, now, displaced))

    def standing(self, key: str) -> Queued:
        """How somebody stands who waits."""
        model, place = self.queue.among_its_model(key)
        return Queued(key, self.queue.position(key), self._wait(model, place))

    def leave(self, key: str) -> list[Admitted]:
        """A session has ended, or its user does not want to wait any more.

        Returns:
            Who may come in now.
        """
        if (ticket := self.queue.leave(key)) is not None:
            self._held[ticket.tenant] -= 1
            self._displaced.pop(key, None)
            return self.call()  # those behind may have been waiting for this one only
        gone = self._running.pop(key, None)
        if gone is None:
            return []
        self._held[gone.tenant] -= 1
        self.lengths.add(self._clock() - gone.began)
        self._places.release(key)
        return self.call()

    def displace(self, hit: Iterable[str]) -> tuple[list[Admitted], list[Queued]]:
        """Sessions have lost their places, which are released already.

        Returns:
            Who may go on elsewhere at once (or come in, where the sessions had GPUs on other hosts too), and those of
            the sessions that wait for a place, ahead of everybody else.
        """
        hit = list(hit)
        for key in hit:
            was = self._displaced[key] = self._running.pop(key)
            priority = self.config.tenant(was.tenant).priority
            self.queue.join(self.queue.ticket(key, was.model, was.tenant, priority, self._clock(), displaced=True))
        return self.call(), [self.standing(key) for key in hit if key in self.queue]

    def call(self) -> list[Admitted]:
        """Let in whoever can be, in order; after anything that frees a place or adds one."""
        admitted: list[Admitted] = []
        tried: set[str] = set()
        fresh = True
        for ticket in self.queue:
            if ticket.model in tried:
                continue  # others who want the same fit no better
            if self._seat(ticket, fresh):
                self.queue.leave(ticket.key)
                admitted.append(Admitted(ticket.key))
                continue
            tried.add(ticket.model)
            fresh = fresh and not self._is_next(ticket)
        return admitted

    def _is_next(self, ticket: Ticket) -> bool:
        """Whether this one has waited so long that it is not overtaken any more."""
        return self._clock() - ticket.since > self._overtaking

    def _seat(self, ticket: Ticket, fresh: bool) -> bool:
        """Find a place; with `fresh` it may be on GPUs that nobody has a part of."""
        if not self._places.place(ticket.key, ticket.model, fresh):
            return False
        before = self._displaced.pop(ticket.key, None)
        self._running[ticket.key] = before or _Running(ticket.model, ticket.tenant, self._clock())
        return True

    def _wait(self, model: str, place: int) -> float:
        now = self._clock()
        ages = [now - r.began for r in self._running.values() if r.model == model]
        return self.lengths.wait(place, ages or [now - r.began for r in self._running.values()])


def _retry_after(wait: float) -> int:
    return min(max(math.ceil(wait) if math.isfinite(wait) else _LATEST, _SOONEST), _LATEST)
