"""One session as processes: what runs where, how a chunk passes through, and what watches it."""
