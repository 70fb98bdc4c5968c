"""PySpark queries as replicas of a merge.

>>> import replicas
>>> replicas.attach(df, merge="counts", server="127.0.0.1:7070", stream="r1", checkpoint="…")
>>> replicas.feed(spark, "input/", time="at")  # a source that skips by feedback
>>> replicas.fast_forward(df, "at")  # a step that does
>>> replicas.register(spark)  # format("lmerge"), to read and to write

Each name is imported when it is asked for: a worker of Spark needs little of this.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replicas.attaching import Replica, attach
    from replicas.fast_forwarding import fast_forward
    from replicas.feeding import feed
    from replicas.formats import register

__all__ = ["Replica", "attach", "fast_forward", "feed", "register"]

_FROM = {
    "Replica": "attaching",
    "attach": "attaching",
    "fast_forward": "fast_forwarding",
    "feed": "feeding",
    "register": "formats",
}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(import_module(f"replicas.{_FROM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
