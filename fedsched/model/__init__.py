"""The nouns of fedsched as frozen records; imports nothing of the package but itself."""
