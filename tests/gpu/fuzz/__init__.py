"""Random allocation programs, played on a GPU and replayed by the model: every address must be the same."""
