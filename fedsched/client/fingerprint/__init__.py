"""What a host is and has, found out by many small looks at it and put together into the node's record."""
