"""Deterministic simulation: a whole server set on one thread, driven by one seed.

The cores, the wire codec and the state are the real ones; network, disk, clock, processes and users are models that may
do anything the fault model allows. Everything a run does follows from its seed and its options, so a failure is a
number that anybody can replay. `python -m fedsched.sim --help` lists the commands.
"""
