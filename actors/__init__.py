"""What runs a character in real time: stages in processes of their own, and the channels that join them.

`topology`, `deadline`, `trace`, `header`, the channels, `loop` and `roles` know nothing of Ray; `stage` and `gang` do.
"""
