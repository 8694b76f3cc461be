"""Parts of all command lines: the parser, options that several commands have, progress on the terminal."""
