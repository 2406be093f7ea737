"""How a cell is watched. Only this package (and holders/) touches torch."""
