"""The caching allocator as a model: pure, no torch."""
