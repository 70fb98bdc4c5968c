"""How the core's loops are compiled, and the machine operations Python has no word for.

Everything in ``lmerge.core`` that loops over rows is a plain function under :func:`compiled`:
numba turns it into machine code on first use and keeps that beside the source, so that only the
first run on a machine waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

# Scalars inside compiled code: numba knows whether they are Python's or NumPy's, and it is all
# the same to the caller.
Int: TypeAlias = Any
Word: TypeAlias = Any

# Columns, named by what they hold. NumPy's types cannot say that an element of one is a scalar,
# so to mypy they are anything.
Int8s: TypeAlias = Any
Int32s: TypeAlias = Any
Int64s: TypeAlias = Any
Words: TypeAlias = Any


def compiled(function: F) -> F:
    """Compile ``function``: integers wrap, bounds are not checked, and nothing is allocated.

    Without allocation there is no reference counting, which is worth a factor of two in loops
    that call small functions: callers pass the arrays that are to be filled.
    """
    jit: Any = numba.njit  # its types do not know _nrt
    return cast(F, jit(cache=True, error_model="numpy", _nrt=False)(function))


def machine(function: Callable[..., Any]) -> Any:
    """An operation written in LLVM's terms."""
    return intrinsic(function)


@machine
def multiply_add(_context: Any, low: Any, high: Any, a: Any, b: Any) -> Any:
    """``(high:low) + a * b`` in 128 bits, as ``(low, high)``."""
    make_tuple: Any = types.Tuple  # untyped, as much of numba is
    pair = make_tuple((types.uint64, types.uint64))
    signature = pair(types.uint64, types.uint64, types.uint64, types.uint64)

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        word = ir.IntType(64)
        low_, high_, a_, b_ = (builder.zext(x, wide) for x in arguments)
        shift = ir.Constant(wide, 64)
        total = builder.add(builder.add(builder.shl(high_, shift), low_), builder.mul(a_, b_))
        parts = (builder.trunc(total, word), builder.trunc(builder.lshr(total, shift), word))
        return context.make_tuple(builder, pair, parts)

    return signature, codegen


@machine
def load_word(_context: Any, data: Any, position: Any) -> Any:
    """The eight bytes of ``data`` from ``position`` on as one little-endian word."""
    signature = types.uint64(data, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()))
        word.align = 1  # a value starts anywhere in its buffer
        return word

    return signature, codegen


@machine
def leading_zeros(_context: Any, word: Any) -> Any:
    """How many of the 64 bits of a word that is not 0 are 0 before the first 1."""
    signature = types.int64(types.uint64)

    def codegen(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return signature, codegen


@machine
def load_at(_context: Any, address: Any, like: Any) -> Any:
    """The number of the type of ``like`` at a machine address."""
    signature = like(types.int64, like)

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], context.get_value_type(like).as_pointer())
        value = builder.load(pointer)
        value.align = 1
        return value

    return signature, codegen


@machine
def copy_bytes(_context: Any, to: Any, origin: Any, count: Any) -> Any:
    """Copies ``count`` bytes from one machine address to another."""
    signature = types.void(types.int64, types.int64, types.int64)

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, byte) for address in arguments[:2])
        copy: Any = cgutils.raw_memcpy
        copy(builder, target, source, arguments[2], itemsize=1)
        return context.get_dummy_value()

    return signature, codegen


@machine
def prefetch(_context: Any, array: Any, row: Any, byte: Any) -> Any:
    """Asks the memory for what is at a byte of an array's row, and does not wait for it."""
    signature = types.void(array, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = context.make_array(signature.args[0])(context, builder, arguments[0])
        step = builder.extract_value(found.strides, 0)
        address = builder.add(
            builder.ptrtoint(found.data, ir.IntType(64)), builder.mul(arguments[1], step)
        )
        address = builder.add(address, arguments[2])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        insert: Any = cgutils.get_or_insert_function
        function = insert(builder.module, kind, "llvm.prefetch.p0")
        hints = [ir.Constant(number, hint) for hint in (1, 3, 1)]  # to write, keep, data
        builder.call(function, [builder.inttoptr(address, byte), *hints])
        return context.get_dummy_value()

    return signature, codegen
