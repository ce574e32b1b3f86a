"""The command line: it turns arguments into library calls and results into tables, and knows nothing else."""
