"""What on this machine keeps a training from doing what it says: facts (gather, job) -> findings (examine)."""
