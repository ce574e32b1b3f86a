"""One session as processes: what runs where, how a chunk passes, who watches."""
