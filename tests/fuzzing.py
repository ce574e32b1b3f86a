"""How tests that feed parts of the system with anything choose what to feed: the same every time, in seconds.

FUZZ_EXAMPLES=5000 pytest -k anything looks further. What breaks something then is kept in tests/corpus, which is
committed, and is tried first from then on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

_FURTHER = int(os.environ.get("FUZZ_EXAMPLES", "0"))
_CORPUS = DirectoryBasedExampleDatabase(Path(__file__).parent / "corpus")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Decorates a test: so many examples, after those of the corpus."""
    chosen = settings(
        max_examples=_FURTHER or examples,
        database=_CORPUS,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    return chosen if _FURTHER else lambda test: seed(0)(chosen(test))


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """A file cut off, with some bytes changed, with a piece doubled or left out; its header most of all."""
    where = st.integers(0, min(len(whole), 200) - 1) | st.integers(0, len(whole) - 1)
    change = st.tuples(where, st.binary(min_size=1, max_size=4), st.integers(0, 8))

    def apply(changes: list[tuple[int, bytes, int]], end: int) -> bytes:
        data = bytearray(whole)
        for at, piece, skip in changes:
            data[at : at + skip] = piece
        return bytes(data[:end])

    ends = st.just(2 * len(whole)) | st.integers(0, len(whole))
    return st.builds(apply, st.lists(change, min_size=1, max_size=6), ends)
