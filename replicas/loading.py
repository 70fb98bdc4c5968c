"""Finds the function that builds a query: ``file.py:function`` or ``package.module:function``.

Whatever is wrong with it (no such file, no such function, an error while it is imported) is a
:class:`~lmerge.errors.ConfigurationError` of one line, which names the user's own line at fault.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lmerge.errors import ConfigurationError, LMergeError

DEFAULT: Final = "build"
"""The function that is meant when none is said."""

Build = Callable[[SparkSession], Any]
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)(: |$)")


def load_build(said: str) -> Build:
    """The function that ``said`` names; its module is imported once."""
    place, colon, name = said.rpartition(":")
    if not colon:
        place, name = said, DEFAULT
    if not place or not name:
        raise ConfigurationError(f"{said!r} is not FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    is_file = place.endswith(".py") or "/" in place
    module = _from_file(Path(place)) if is_file else _from_package(place)
    found = getattr(module, name, None)
    if found is None:
        own = [
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        has = f"it has {', '.join(own)}" if own else "it has none at all"
        raise ConfigurationError(f"{place} has no function {name!r}; {has}")
    if not callable(found):
        raise ConfigurationError(f"{name} of {place} is no function, but {type(found).__name__}")
    return found  # type: ignore[no-any-return]  # whatever it returns is looked at in query_of


def query_of(build: Build, said: str, spark: SparkSession) -> tuple[DataFrame, Mapping[str, Any]]:
    """What the function builds: the DataFrame, and the options that stand beside it."""
    try:
        built = build(spark)
    except LMergeError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{said}: {_place(error, None)}{reason(error)}") from error
    df, options = built if isinstance(built, tuple) and len(built) == 2 else (built, {})
    if not isinstance(df, DataFrame):
        raise ConfigurationError(
            f"{said} must return a DataFrame, or a DataFrame and a dict of options, not"
            f" {type(built).__name__}"
        )
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"{said}: the options beside the DataFrame are a dict, not {type(options).__name__}"
        )
    return df, options


def reason(error: BaseException) -> str:
    """Why, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if isinstance(error, PySparkException):
        # What the user's own function raised in a worker stands at the end of its traceback.
        raised = [line for line in lines if _RAISED.match(line)]
        return raised[-1] if raised else lines[0]
    if isinstance(error, LMergeError):
        return lines[0]
    if isinstance(error, Py4JJavaError) and len(lines) > 1:
        return lines[1].lstrip(": ")  # before it only stands which call it was
    return f"{type(error).__name__}: {lines[0]}"


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"no such file: {path}")
    path = path.resolve()
    found = sys.modules.get(path.stem)
    if found is not None and getattr(found, "__file__", None) == str(path):
        return found
    # By its own name and with its folder on the path, so that it can import its neighbours and
    # what it pickles can be found; but never in the place of a module that is there already.
    taken = found is not None or importlib.util.find_spec(path.stem) is not None
    name = f"lmerge_query_{path.stem}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path.name} is no Python file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_error(path.name, error, str(path)) from error
    # Its functions go to the workers with their code: the file need not be there.
    register: Any = cloudpickle.register_pickle_by_value  # which has no types
    register(module)
    return module


def _from_package(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` does
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(f"no such module: {name}") from error
        raise _import_error(name, error, None) from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error, None) from error


def _import_error(what: str, error: BaseException, file: str | None) -> ConfigurationError:
    return ConfigurationError(f"cannot import {what}: {_place(error, file)}{reason(error)}")


def _place(error: BaseException, file: str | None) -> str:
    """The line at fault, where it is the user's: the last one that is not a library's."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"line {error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if each.filename == file] or [
        each
        for each in frames
        if "site-packages" not in each.filename
        and not each.filename.startswith("<")
        and each.filename != __file__
        and not each.filename.startswith(importlib.__path__[0])
    ]
    return f"line {own[-1].lineno}: " if own else ""
