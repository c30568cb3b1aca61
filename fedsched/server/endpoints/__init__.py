"""The handlers behind the method table, one module per noun."""
