"""How the core's loops are compiled, and the machine operations Python has no word for.

Everything in ``lmerge.core`` that loops over rows is a plain function under :func:`compiled`:
numba turns it into machine code on first use and keeps that beside the source, so that only the
first run on a machine waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

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

# Bytes ahead at which a loop over long values asks the memory: processors look ahead by themselves,
# but not across the 4 KiB of a page.
AHEAD: Final = 4096


def compiled(function: F) -> F:
    """Compile ``function``: integers wrap, bounds are not checked, and nothing is allocated.

    Without allocation there is no reference counting, which is worth a factor of two in loops
    that call small functions: callers pass the arrays that are to be filled.
    """
    jit: Any = numba.njit  # its types do not know _nrt
    return cast(F, jit(cache=True, error_model="numpy", _nrt=False)(function))


def inlined(function: F) -> F:
    """:func:`compiled` into each of its callers: for what is called for every row.

    LLVM leaves a long function a function, and passing it an array copies seven words.
    """
    jit: Any = numba.njit
    return cast(F, jit(cache=True, error_model="numpy", _nrt=False, forceinline=True)(function))


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


@machine
def paired_sums(_context: Any, data: Any, position: Any, length: Any, keys: Any, place: Any) -> Any:
    """Two sums over ``length`` bytes (64 at least) of ``data``, each modulo 2⁶⁴.

    The bytes are taken by lines of 64, the last of which overlaps the one before unless they come
    out even. A line is eight pairs of 32-bit numbers. For each sum every number is added to its own
    key modulo 2³², and the two of a pair are multiplied: 32 bits by 32 are what processors
    multiply several at a time. A line takes eight words of keys for each sum.
    """
    make_tuple: Any = types.Tuple  # untyped, as much of numba is
    pair = make_tuple((types.uint64, types.uint64))
    signature = pair(data, types.int64, types.int64, keys, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, number, byte = ir.IntType(64), ir.IntType(32), ir.IntType(8)
        words, numbers = ir.VectorType(word, 8), ir.VectorType(number, 16)
        _, position, length, _, place = arguments
        found, secret = (
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 3)
        )
        start = builder.gep(found.data, [position])
        first_key = builder.gep(secret.data, [place])
        low, shift = (ir.Constant(words, [value] * 8) for value in (0xFFFFFFFF, 32))
        variable: Any = cgutils.alloca_once_value
        sums = [variable(builder, ir.Constant(words, [0] * 8)) for _ in range(2)]
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
        insert: Any = cgutils.get_or_insert_function
        ask = insert(builder.module, kind, "llvm.prefetch.p0")
        hints = [ir.Constant(number, hint) for hint in (0, 3, 1)]  # to read, keep, data

        def load(address: Any) -> Any:
            value = builder.load(builder.bitcast(address, numbers.as_pointer()))
            value.align = 1
            return value

        last = builder.sub(length, ir.Constant(word, 64))
        lines = builder.lshr(builder.add(length, ir.Constant(word, 63)), ir.Constant(word, 6))
        loops: Any = cgutils.for_range
        with loops(builder, lines, intp=word) as loop:
            offset = builder.shl(loop.index, ir.Constant(word, 6))
            ahead = builder.gep(start, [builder.add(offset, ir.Constant(word, AHEAD))])
            builder.call(ask, [ahead, *hints])
            over = builder.icmp_unsigned(">", offset, last)
            read = load(builder.gep(start, [builder.select(over, last, offset)]))
            key = builder.gep(first_key, [builder.shl(loop.index, ir.Constant(word, 4))])
            for i, total in enumerate(sums):
                secret_words = load(builder.gep(key, [ir.Constant(word, 8 * i)]))
                keyed = builder.bitcast(builder.add(read, secret_words), words)
                product = builder.mul(builder.and_(keyed, low), builder.lshr(keyed, shift))
                builder.store(builder.add(builder.load(total), product), total)
        both = []
        for total in sums:
            lanes = builder.load(total)
            each = [builder.extract_element(lanes, ir.Constant(number, i)) for i in range(8)]
            while len(each) > 1:
                each = [builder.add(a, b) for a, b in zip(each[::2], each[1::2], strict=True)]
            both.append(each[0])
        return context.make_tuple(builder, pair, both)

    return signature, codegen
