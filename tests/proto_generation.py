"""Generates the Python code of the wire contract: ``python -m tests.proto_generation DIRECTORY``.

The generated files are committed; a test generates them anew and compares.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
PROTO = ROOT / "proto"
_HEAD = '"""Generated from proto/ by `make proto`: the wire contract is described there."""\n'


def generate(target: Path) -> None:
    """Writes the generated modules into ``target``, replacing what is there."""
    import grpc_tools

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = sorted(PROTO.glob("lmerge/v1/*.proto"))
    with tempfile.TemporaryDirectory() as work:
        status = protoc.main(
            ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--python_out={work}", f"--pyi_out={work}",
             f"--grpc_python_out={work}", *map(str, sources)]
        )  # fmt: skip
        if status:
            raise SystemExit(status)
        made = Path(work) / "lmerge" / "v1"
        services = {"replica", "consumer", "operator"}
        for stub in made.glob("*_pb2_grpc.py"):
            if stub.name.removesuffix("_pb2_grpc.py") not in services:
                stub.unlink()
        (made / "__init__.py").write_text(_HEAD, "utf-8")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
