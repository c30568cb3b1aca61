"""The way into fedsched for programs: `connect` to an agent, call its methods, get typed answers.

    from fedsched.sdk.connect import connect

    with connect("http://127.0.0.1:4646") as client:
        ...

Kept empty on purpose: importing `fedsched.sdk` costs nothing until something is used.
"""
