"""Other people's APIs, over the same sessions: a client of theirs is pointed here and changes nothing else."""
