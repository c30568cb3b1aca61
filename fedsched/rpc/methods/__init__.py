"""Requests, replies and declarations, one module per noun. `all` imports every one of them."""
