"""Grafana's view of the application, as code."""
