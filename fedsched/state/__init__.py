"""The replicated state: tables at one index, the commands that change them, changes, images and digests."""
