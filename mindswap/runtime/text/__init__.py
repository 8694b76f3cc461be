"""Training text: files to tokens to samples of equal length, streamed, without MindSpore."""
