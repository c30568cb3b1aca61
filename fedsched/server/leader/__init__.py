"""What only a leader does, for one term of office; each service is a core beside the loop that runs it."""
