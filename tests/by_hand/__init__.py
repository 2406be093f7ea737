"""Recordings and heaps that tests write by hand."""
