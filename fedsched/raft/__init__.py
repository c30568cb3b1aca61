"""Raft for one region's server set: a pure core, its log store, and a trio runner. Knows nothing of jobs."""
