"""The LiveKit room, in which a session meets its user."""
