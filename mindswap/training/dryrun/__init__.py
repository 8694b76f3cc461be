"""A training on MindSpore's Ascend backend without a card: stand-ins for CANN (stand_ins), processes, results."""
