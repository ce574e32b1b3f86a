"""Published checkpoints on this machine: brought, converted, checked and found again."""
