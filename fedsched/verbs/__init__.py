"""What a person can type, once: arguments, the call, the view. The command line and the shell both run these."""
