"""Communication between GPUs: groups, the exchange of a sequence group, peer memory, the watch for dead ranks."""
