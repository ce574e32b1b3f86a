"""What the stages do, as plain classes that need neither Ray nor a network."""
