"""Search for the decisions of one pipeline stage, or of all of them."""
