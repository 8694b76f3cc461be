"""The compiled graph run operator by operator on CPU: its gradients are, bit for bit, those without swap and recompute.

The CPU backend of MindSpore cannot run a graph with lazy_inline. Here each operator of that graph runs on MindSpore's
own CPU kernels, or on a stand-in of numpy (`stand_ins`), in memory of the test's own: copies leave, come back and give
memory back by the rules of the Ascend backend (`timetable`), and whatever is given back is filled with NaN (`run`). If
a policy, the compiler or these rules let something go too early or bring it back too late, the gradients are NaN.
It imports nothing of the simulator. What the backend makes of memory is another question: `mindswap dryrun`.
"""
