"""Runs a character in real time: stages, each in a process of its own, and the channels between them.

Only `pipeline/stage.py` and `pipeline/gang.py` know Ray.
"""
