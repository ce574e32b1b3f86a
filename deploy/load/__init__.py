"""Users without browsers."""
