"""What the application adds to the `characters` program; found through the entry point of this name."""

from __future__ import annotations

# As in `characters.cli.main`. Modules are imported only when their command is called.
COMMANDS = {
    "up": ("deploy.cli.up:up", "Start everything and print the address to talk at."),
    "doctor": ("deploy.cli.doctor:doctor", "Look at this machine: what is there and what is missing."),
    "scale": ("deploy.cli.scale:scale", "Ask a served application for more or fewer pipelines."),
    "status": ("deploy.cli.scale:status", "Show a served application: replicas, sessions, queue."),
    "loadtest": ("deploy.cli.loadtest:loadtest", "Send users without browsers and measure what they get."),
    "plan": ("deploy.cli.plan:plan", "Show how a model can be spread over GPUs, and which ways keep up."),
    "calibrate": ("deploy.cli.calibrate:calibrate", "Measure how fast this machine is, for `characters plan`."),
    "livekit": ("deploy.cli.livekit:livekit", "Install the LiveKit server."),
}
