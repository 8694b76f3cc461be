"""Where versions of MindSpore and MindFormers differ in what mindswap needs of them: one module for each of the two."""
