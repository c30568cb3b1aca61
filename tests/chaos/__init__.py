"""Real server processes under kill, pause and cut links, with a checked record of what clients saw."""
