"""Compile our proto files to src/ister/rpc, and write types for the stubs of danube-client to stubs/.

danube-client ships its stubs without types. Its descriptors say all that types need, so they are made from what is
installed; at run time the package itself is used, because one process can hold a message only once.
"""  # noqa: INP001  # a script, run by `make protos`

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc_tools
from danube.proto import DanubeApi_pb2, SchemaRegistry_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
OURS = sorted((PROTOS / "ister" / "rpc").glob("*.proto"))
THEIRS = (DanubeApi_pb2, SchemaRegistry_pb2)


def generate(root: Path) -> None:
    """Write every generated file below `root`, as the repository has them."""
    source, stubs = root / "src", root / "stubs" / "danube" / "proto"
    source.mkdir(parents=True, exist_ok=True)
    stubs.mkdir(parents=True, exist_ok=True)
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    _protoc(f"-I{PROTOS}", f"-I{well_known}", f"--python_out={source}", f"--pyi_out={source}", *map(str, OURS))
    with TemporaryDirectory() as scratch:
        described = Path(scratch, "danube.pb")
        files = FileDescriptorSet()
        for module in THEIRS:
            module.DESCRIPTOR.CopyToProto(files.file.add())
        described.write_bytes(files.SerializeToString())
        names = [module.DESCRIPTOR.name for module in THEIRS]
        _protoc(f"--descriptor_set_in={described}", f"--pyi_out={stubs}", *names)
    (stubs / "__init__.pyi").write_text("")


def _protoc(*arguments: str) -> None:
    if protoc.main(["protoc", *arguments]) != 0:
        sys.exit("protoc failed; what it said is above")


if __name__ == "__main__":
    generate(PROTOS.parent)
