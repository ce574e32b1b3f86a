"""Media files: portraits and recordings in, videos out. Nothing here knows the model."""
