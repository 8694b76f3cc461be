"""The operating system: child processes, signals, standard streams, scratch folders, environment, disk cache."""
