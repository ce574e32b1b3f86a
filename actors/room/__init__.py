"""Where a session meets its user."""
