"""The one door to anything unpredictable: clocks, chance, ids.

`env` says what may be asked for, `real` asks the machine, `fixed` is for tests. Nothing is imported here: a short
command that needs a fresh id should not pay for dice as well.
"""
