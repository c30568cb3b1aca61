"""Job files: the language they are written in, and the way from a text to a job."""
