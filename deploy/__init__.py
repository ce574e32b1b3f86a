"""The Serve application: HTTP ingress, admission, LiveKit, pipelines, and the page."""
