"""One view document, rendered as HTML, PNG and text."""
