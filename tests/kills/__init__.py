"""An agent killed with -9, hundreds of times, at random and at every step of a task's life: no task may notice."""
