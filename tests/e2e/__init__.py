"""Whole agents as processes: what an operator would see, asserted."""
