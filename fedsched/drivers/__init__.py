"""What runs tasks: one protocol, the drivers that come with fedsched, and those of others by entry point."""
