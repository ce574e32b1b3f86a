"""Behind `characters bench`: speed and exactness of the DiT's step and of the Wan decoder on the GPUs present."""
