"""Read pickles and torch files without running code that they name.

::

    unpickler.py    entry points for .pyd, .pickle, .pkl and .pth; the table of accepted names
    interpreter.py  executes pickle opcodes within limits of memory, depth and time
    arrays.py       numpy arrays, torch tensors and torch files
"""
