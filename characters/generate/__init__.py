"""From sound and a portrait to chunks of video."""
