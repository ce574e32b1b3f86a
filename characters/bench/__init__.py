"""How fast one step of the DiT is on the GPUs at hand, and against what: behind `characters bench step`."""
