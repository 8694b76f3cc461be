"""Training text: files -> tokens -> samples of equal length, streamed, without MindSpore."""
