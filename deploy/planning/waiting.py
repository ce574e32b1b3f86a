"""Who waits, in which order, and for how long. Shared by the application's sessions and the planner's admission."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from characters.config import load_conf


@dataclass
class Tenant:
    """What the holder of one API key may do.

    Attributes:
        priority: sessions with a higher priority leave the queue first.
        sessions: how many may run and wait at a time; 0 = as many as there is room for.
    """

    priority: int = 0
    sessions: int = 0

    def __post_init__(self) -> None:
        if self.sessions < 0:
            raise ValueError("sessions must not be negative")


@dataclass
class AdmissionConfig:
    """conf/admission/NAME.yaml.

    Attributes:
        queue: how many sessions may wait.
        typical: seconds that a session is taken to last, for estimated waits, until one has ended.
        everybody: what users without an entry below `tenants` may do.
        tenants: what the holder of each API key may do, by the key's name in CHARACTERS_API_KEYS.
    """

    queue: int = 50
    typical: float = 120.0
    everybody: Tenant = field(default_factory=Tenant)
    tenants: dict[str, Tenant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.queue < 0 or self.typical <= 0:
            raise ValueError("queue must not be negative, typical must be positive")

    def tenant(self, name: str) -> Tenant:
        """Who holds the API key of that name."""
        return self.tenants.get(name, self.everybody)


def load_admission(name: str) -> AdmissionConfig:
    """Read conf/admission/NAME.yaml or a path, see `characters.config.load_conf`, which raises UserError."""
    return load_conf("admission", name, AdmissionConfig, "admission config")


class Lengths:
    """How long sessions last, as measured.

    Args:
        typical: seconds, until one has been seen.
        kept: newest ones that count.
    """

    def __init__(self, typical: float, kept: int = 200) -> None:
        self._typical = typical
        self._seen: deque[float] = deque(maxlen=kept)

    def add(self, seconds: float) -> None:
        """A session has ended."""
        self._seen.append(seconds)

    @property
    def typical(self) -> float:
        """Seconds, on average."""
        return float(np.mean(self._seen)) if self._seen else self._typical

    def wait(self, place: int, ages: Sequence[float], least: float = 5.0) -> float:
        """Seconds until `place` sessions are likely to have ended.

        By then as many are expected to have ended: each ends within t seconds with the share of the measured lengths
        above its age that t more would not reach. Whoever takes a freed seat is taken to stay for a typical time, so
        nobody waits longer than for the first to end and one more session.

        Args:
            place: 1 for who is next.
            ages: seconds that those before have run; without any the wait is infinite.
            least: a session older than any measured one is given so many seconds.
        """
        if not ages:
            return math.inf
        lengths = np.sort(np.asarray(self._seen or [self._typical]))
        age = np.asarray(ages, dtype=float)
        below = np.searchsorted(lengths, age, side="right")  # lengths that the session has outlived
        above = len(lengths) - below

        def ended(within: float) -> float:
            gone = np.searchsorted(lengths, age + within, side="right") - below
            return float(np.where(above > 0, gone / np.maximum(above, 1), within >= least).sum())

        def until(count: int) -> float:
            low, high = 0.0, max(least, float(lengths[-1]))
            while high - low > 0.1:
                middle = (low + high) / 2
                low, high = (low, middle) if ended(middle) >= count - 1e-9 else (middle, high)
            return high

        rounds, nth = divmod(place - 1, len(age))
        first = until(1)
        return rounds * self.typical + min(until(nth + 1) if nth else first, first + self.typical)


@dataclass(order=True, slots=True)
class Ticket:
    """A place in the queue. Tickets sort in the order in which they are called.

    Attributes:
        rank: those who lost their GPU come first, then priority, then arrival.
        key: of the session.
        model: that it wants.
        tenant: name of its API key.
        since: when it came.
    """

    rank: tuple[int, int, int]
    key: str = field(compare=False)
    model: str = field(compare=False)
    tenant: str = field(compare=False)
    since: float = field(compare=False)


class Queue:
    """Tickets in their order."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []
        self._by_key: dict[str, Ticket] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[Ticket]:
        return iter(tuple(self._tickets))

    def ticket(self, key: str, model: str, tenant: str, priority: int, since: float, displaced: bool = False) -> Ticket:
        """A ticket, not in the queue yet."""
        self._arrivals += 1
        return Ticket((0 if displaced else 1, -priority, self._arrivals), key, model, tenant, since)

    def join(self, ticket: Ticket) -> None:
        """Line up."""
        insort(self._tickets, ticket)
        self._by_key[ticket.key] = ticket

    def leave(self, key: str) -> Ticket | None:
        """Out of the queue, called or not."""
        ticket = self._by_key.pop(key, None)
        if ticket is not None:
            self._tickets.remove(ticket)
        return ticket

    def position(self, key: str) -> int:
        """1 for who is next; 0 for who does not wait."""
        ticket = self._by_key.get(key)
        return self._tickets.index(ticket) + 1 if ticket else 0

    def among_its_model(self, key: str) -> tuple[str, int]:
        """The model that somebody waits for, and 1 for who is next of those who wait for it."""
        own = self._by_key[key]
        return own.model, 1 + sum(t.model == own.model and t < own for t in self._tickets)
