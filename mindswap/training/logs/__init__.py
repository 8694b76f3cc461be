"""What workers of a training run logged, and whether it agrees with the policy."""
