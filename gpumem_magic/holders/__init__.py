"""Who keeps a tensor alive, and how to let go."""
