"""Training steps: compiled under a policy, recorded in PyNative mode, or of any MindSpore network."""
