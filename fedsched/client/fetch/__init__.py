"""Fetching what a job names from elsewhere: a short-lived, restricted process downloads and unpacks into a directory of
its own inside the allocation; the agent then moves the result to where it belongs, through directory handles.
"""
