"""The voting half of a region: takes requests, replicates them through Raft, answers from its own state."""
