"""Swap executed in PyNative mode: what a step saved (trace), what to move when (schedule), what lives (ledger). Pure."""
