"""Templates of tasks: a subset of Go's text templates with the functions that job authors know.

Read (`lexer`, `parser`), filled in (`evaluate`) from data that was fetched before (`data`), within a budget of steps,
bytes and time; nothing in a template can reach beyond the values it is given. Pure, and below both halves of an agent:
servers read templates when a job is submitted, clients fill them in (`client.template` fetches, watches and writes).
"""
