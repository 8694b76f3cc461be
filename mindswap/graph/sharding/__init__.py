"""Sizes on one rank: how operators are split over tensor, expert and pipeline parallel ranks."""
