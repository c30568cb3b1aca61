"""What regions do together: who is where, which server answers for a region, and jobs that span several.

`directory` knows the servers of all regions, `route` picks one, `multiregion` turns a job into one per region,
`rollout_core` brings them out one after another. All of it decides and none of it does: `server` has the runners.
Nothing is imported here, so that a command pays only for what it uses.
"""
