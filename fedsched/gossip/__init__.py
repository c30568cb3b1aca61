"""Who the servers of all regions are and which of them answer: SWIM with Lifeguard, as a core without input or output.

Knows nothing of jobs, Raft or requests. Whatever must be right goes through Raft; gossip only makes it easy to find.
"""
