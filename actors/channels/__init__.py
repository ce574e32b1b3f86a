"""From one process to the next: one protocol, several ways."""
