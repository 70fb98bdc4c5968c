"""What a Python function does, as text that is the same in every process that runs the same code.

A pickle is not: it has the file's name, line numbers, and numbers that cloudpickle makes anew. So a
function is described by its instructions and constants, its defaults and what it encloses, and by
what it refers to. Its own package's functions and classes are followed; of others (the standard
library, Spark, whatever else is installed) the name counts. Names of variables, comments and
docstrings make no difference; another minor version of Python, which has other instructions, does.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

_LIBRARIES: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_OURS: Final = ("pyspark", "py4j", "lmerge", "replicas")  # whatever folder they lie in
_EXAMPLES: Final = "replicas.plans"  # users' code, by their place apart
_PLAIN: Final = (type(None), bool, int, float, complex, bytes, type(...))
_OF_CLASSES: Final = frozenset({
    "__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__slotnames__",
    "__firstlineno__", "__static_attributes__", "__annotations__", "_abc_impl",
})  # fmt: skip


def body(value: Any, masks: Iterable[str] = ()) -> str:
    """A digest of what was pickled for a worker; ``masks`` are texts that differ in every run."""
    said = _Reading(tuple(masks), _package(value)).say(value)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class _Reading:
    """One description. Objects that come again are named by their number, so circles end."""

    def __init__(self, masks: tuple[str, ...], package: str | None) -> None:
        self._masks = masks
        self._package = package
        self._seen: dict[int, tuple[int, Any]] = {}  # keeps them alive, so that no id comes again

    def say(self, value: Any) -> str:
        if isinstance(value, str):
            for mask in self._masks:
                value = value.replace(mask, "<run>")
            return repr(value)
        if isinstance(value, _PLAIN):
            return repr(value)
        if id(value) in self._seen:
            return f"<{self._seen[id(value)][0]}>"
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}[{self._all(value)}]"
        if isinstance(value, dict):
            return f"dict[{self._all(each for item in value.items() for each in item)}]"
        if isinstance(value, set | frozenset):
            # Their order differs from process to process.
            return f"set[{', '.join(sorted(_Reading(self._masks, None).say(e) for e in value))}]"
        return self._object(value)

    def _all(self, values: Iterable[Any]) -> str:
        return ", ".join(self.say(each) for each in values)

    def _object(self, value: Any) -> str:
        if isinstance(value, CodeType):
            return self._code(value, None)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, BuiltinFunctionType):
            return f"function {value.__module__}.{value.__qualname__}"
        if isinstance(value, MethodType):
            return f"method({self.say(value.__func__)}, {self.say(value.__self__)})"
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__}({self.say(value.__func__)})"
        if isinstance(value, property):
            return f"property({self._all((value.fget, value.fset, value.fdel))})"
        if isinstance(value, functools.partial):
            return f"partial({self._all((value.func, value.args, value.keywords))})"
        if isinstance(value, type):
            return self._class(value)
        return self._instance(value)

    def _function(self, function: FunctionType) -> str:
        enclosed = [_content(cell) for cell in function.__closure__ or ()]
        around = self._all((function.__defaults__, function.__kwdefaults__, enclosed))
        if not self._is_own(function.__module__, function.__code__.co_filename):
            return f"function {function.__module__}.{function.__qualname__}({around})"
        names = sorted(set(_names(function.__code__)) & function.__globals__.keys())
        used = ", ".join(
            f"{name}={self.say(function.__globals__[name])}"
            for name in names
            if name != "__builtins__"
        )
        return f"function({self._code(function.__code__, function.__doc__)}, {around}, {used})"

    def _code(self, code: CodeType, doc: str | None) -> str:
        constants = code.co_consts
        if doc is not None and constants and constants[0] == doc:
            constants = constants[1:]
        shape = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
        inside = self._all((*constants, code.co_exceptiontable))
        return f"code({shape}, {code.co_code.hex()}, {code.co_names}, {inside})"

    def _class(self, found: type) -> str:
        name = f"class {found.__module__}.{found.__qualname__}"
        module = sys.modules.get(found.__module__)
        file = getattr(module, "__file__", None)
        built_in = module is not None and file is None and found.__module__ != "__main__"
        if built_in or not self._is_own(found.__module__, file or ""):
            return name
        own = sorted(set(vars(found)) - _OF_CLASSES)
        parts = ", ".join(f"{each}={self.say(vars(found)[each])}" for each in own)
        return f"class {found.__qualname__}({self._all(found.__bases__)}; {parts})"

    def _instance(self, value: Any) -> str:
        kind = self.say(type(value))
        if callable(getattr(value, "jsonValue", None)):  # Spark's types
            return f"{kind} {value.jsonValue()}"
        state = getattr(value, "__dict__", None)
        if state:
            return f"{kind}({self.say(dict(state))})"
        try:
            return f"{kind} {hashlib.sha256(pickle.dumps(value, protocol=4)).hexdigest()}"
        except Exception:  # a lock, a connection: what it is has to do
            return kind

    def _is_own(self, module: str | None, file: str) -> bool:
        """Whether it is followed: the user's own code, and not a library's."""
        top = (module or "").partition(".")[0]
        if top in _OURS:
            return (module or "").startswith(_EXAMPLES)
        if top == self._package:
            return True
        return module is None or (top != "builtins" and not file.startswith(_LIBRARIES))


def _package(value: Any) -> str | None:
    """The package of the function that was pickled: it may be installed, and is the user's."""
    while isinstance(value, tuple | list) and value:
        value = value[0]
    module = getattr(value, "__module__", None) or type(value).__module__
    top = str(module).partition(".")[0]
    return None if top in _OURS or top in sys.stdlib_module_names else top


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _names(code: CodeType) -> Iterator[str]:
    """The names that it, and what is defined in it, may look up among the globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
