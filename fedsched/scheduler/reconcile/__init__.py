"""Reconcilers: from a job and what runs of it to what has to change. Finding nodes for it is left to others."""
