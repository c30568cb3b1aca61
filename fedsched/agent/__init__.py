"""One running agent: its settings, its parts, and the order in which they start and stop."""
