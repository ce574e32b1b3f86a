"""Where sessions can run and when they may begin. Only `calibrate` measures; the rest computes, without Ray."""
