"""What is done around the tasks of an allocation, one module per concern; see `hook`."""
