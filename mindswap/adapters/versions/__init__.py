"""Where versions of MindSpore and MindFormers differ in what mindswap needs of them: one module for each.

`executors` chooses by the installed MindSpore, `chosen` by the installed MindFormers.
"""
