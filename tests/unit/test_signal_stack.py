"""A library that leaves the main thread a signal stack, as OpenVINO does, does not end a later test's process."""

from __future__ import annotations

import ctypes

from signal_stack import SignalStack

LEFT = ctypes.create_string_buffer(1 << 16)


def test_a_library_leaves_a_signal_stack() -> None:
    stack = SignalStack(ctypes.addressof(LEFT), 0, len(LEFT))
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0


def test_the_signal_stack_that_a_test_left_is_not_there_in_the_next() -> None:
    stack = SignalStack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
    assert stack.address != ctypes.addressof(LEFT)
