"""Tasks as containers of a Docker Engine, or of podman's compatible socket."""
