"""Rendered people: the second domain that the model learns, driven by the same curves as the drawn characters."""
