"""What a recording means: pure, numpy in, dataclasses out."""
