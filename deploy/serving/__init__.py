"""The Serve application: HTTP, sessions, pipelines."""
