"""One small process per task that outlives the agent: it owns the task, its output and how it ended."""
