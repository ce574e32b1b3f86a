"""The commands of what is served."""
