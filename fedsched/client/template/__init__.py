"""Templates of running tasks: their data fetched and watched (`feed`, `watch_core`), their files read and written
(`files`). The language itself is `fedsched.template`; `hooks.templates` puts both together.
"""
