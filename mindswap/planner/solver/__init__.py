"""The search: `fast` finds a choice for a `Space`, `search` counts and keeps what was simulated."""
