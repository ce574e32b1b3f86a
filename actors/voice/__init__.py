"""The voice agent: small typed modules for hearing, deciding, answering and speaking. No Ray, no LiveKit in here."""
