"""How often a participant of a room may do something."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_REMEMBERED = 100  # participants


class Allowance:
    """Lets each participant do something `burst` times at once, and `rate` times a second after that.

    Args:
        burst, rate: see above.
        clock: seconds.
    """

    def __init__(self, burst: int, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._rate, self._clock = burst, rate, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how often it may, since when

    def take(self, identity: str) -> bool:
        """Whether the participant may do it now; if so, it counts."""
        now = self._clock()
        left, since = self._left.pop(identity, (float(self._burst), now))
        left = min(self._burst, left + (now - since) * self._rate)
        self._left[identity] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
        return left >= 1
