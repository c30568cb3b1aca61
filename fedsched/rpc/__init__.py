"""Methods: declared once, called over a link, in process, or from a one-shot command.

`method` says what a method is, `methods/` holds the declarations, `caller` asks, `server_side` answers, and `errors`
carries refusals across. Nothing is imported here, so that a command pays only for what it uses.
"""
