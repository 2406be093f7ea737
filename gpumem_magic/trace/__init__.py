"""What was recorded, as plain columns: no torch, no IPython, no clock."""
