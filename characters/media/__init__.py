"""Files in and out: portraits, recordings, videos. Nothing here knows the model."""
