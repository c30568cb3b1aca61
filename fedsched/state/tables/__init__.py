"""One module per stored noun: its rows, its indexes, and the commands that change it."""
