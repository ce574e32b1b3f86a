"""Where sessions can run and when they may begin. Pure: no Ray, no GPU, no clock of its own."""
