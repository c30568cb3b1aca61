"""Networks of task groups: a namespace for each allocation that asks for one, and its way out of it."""
