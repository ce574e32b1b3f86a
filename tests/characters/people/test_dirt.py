"""Portraits get dirty, but stay the same picture."""

import numpy as np

from characters.people.dirt import add_dirt


def test_dirt_changes_a_picture_a_little():
    y, x = np.mgrid[0:68, 0:44]
    clean = np.stack([4 * x, 3 * y, 255 - 3 * y], -1).clip(0, 255).astype(np.uint8)
    changes = []
    for seed in range(20):
        dirty = add_dirt(clean, np.random.default_rng(seed))
        assert dirty.shape == clean.shape and dirty.dtype == np.uint8
        changes.append(np.abs(dirty.astype(int) - clean).mean())
    assert sum(c > 0 for c in changes) >= 12 and max(changes) < 12
