"""The half of an agent that runs on every host: it takes allocations, runs their tasks and tells how they do."""
