"""`mindswap trace`: one step in PyNative mode, recorded on this machine."""
