"""gpumem_magic: where did the GPU memory go, cell by cell, and what to do about it."""
