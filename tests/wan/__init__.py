"""Many regions of real processes: agents that find and lose each other, regions that are cut off and come back."""
