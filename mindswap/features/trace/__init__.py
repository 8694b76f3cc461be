"""Record one step in PyNative mode on this machine: `mindswap trace`."""
