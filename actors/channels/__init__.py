"""Channels, which carry tensors from one role to the next: one protocol, several implementations."""
