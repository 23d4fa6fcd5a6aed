"""The stack of a thread's signal handlers, as the kernel has it."""

from __future__ import annotations

import ctypes


class SignalStack(ctypes.Structure):
    """stack_t of sigaltstack(2): where the main thread's signal handlers run."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))
