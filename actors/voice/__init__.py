"""The voice agent: it hears (listener, transcriber), decides (bridge), thinks and speaks (talker). No Ray, no room."""
