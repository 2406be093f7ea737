"""The Jupyter Server extension: one poller, handlers, pid to notebook."""
