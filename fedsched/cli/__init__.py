"""The command line: argv to verb, plus the verbs that start things."""
