"""What a running agent says about itself: log events and metrics."""
