"""Generated stubs are what the proto files say, nothing else lives beside them, and the wire is the protocol's."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from danube.proto import DanubeApi_pb2, SchemaRegistry_pb2

from ister.rpc import danube_admin_pb2, danube_schema_pb2, danube_storage_pb2, ister_v1_pb2

ROOT = Path(__file__).parent.parent.parent
OURS = (danube_admin_pb2, danube_schema_pb2, danube_storage_pb2, ister_v1_pb2)
WIRE = Path(__file__).parent / "wire.txt"


def files_of(root):
    places = (root / "src" / "ister" / "rpc", root / "stubs" / "danube" / "proto")
    return {path.relative_to(root): path for place in places for path in place.rglob("*.py*") if path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("generate", ROOT / "protos" / "generate.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    root = tmp_path_factory.mktemp("protos")
    script.generate(root)
    return files_of(root)


def test_the_stubs_are_up_to_date(generated):
    for name, path in generated.items():
        assert (ROOT / name).exists(), f"run `make protos`: {name} is missing"
        assert (ROOT / name).read_text() == path.read_text(), f"run `make protos`: {name} is old"


def test_nothing_but_stubs_lives_beside_them(generated):
    assert set(files_of(ROOT)) - set(generated) == {Path("src/ister/rpc/__init__.py")}
    assert len((ROOT / "src/ister/rpc/__init__.py").read_text().splitlines()) == 1


def test_the_runtime_that_we_ask_for_can_load_the_stubs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [least] = [re.fullmatch(r"protobuf>=([\d.]+)", one)[1] for one in project["dependencies"] if "protobuf" in one]
    written = set(
        re.findall(r"# Protobuf Python Version: ([\d.]+)", (ROOT / "src/ister/rpc/ister_v1_pb2.py").read_text())
    )
    assert written == {least}


def test_no_file_and_no_message_is_called_as_another_of_danubes():
    theirs = (DanubeApi_pb2.DESCRIPTOR, SchemaRegistry_pb2.DESCRIPTOR)
    for module in OURS:
        assert module.DESCRIPTOR.name.startswith("ister/rpc/"), "upstream has DanubeApi.proto and its like"
        for file in theirs:
            if file.package == module.DESCRIPTOR.package:
                assert not set(file.message_types_by_name) & set(module.DESCRIPTOR.message_types_by_name)
                assert not set(file.services_by_name) & set(module.DESCRIPTOR.services_by_name)


def described(file):
    """Yield a line for each method, field and enum value: what two programs must agree on."""
    for service in file.services_by_name.values():
        for method in service.methods:
            streams = "stream " if method.server_streaming else ""
            yield f"/{service.full_name}/{method.name} {method.input_type.name} -> {streams}{method.output_type.name}"
    for enum in file.enum_types_by_name.values():
        for value in enum.values:
            yield f"{enum.full_name} {value.number} {value.name}"
    for message in file.message_types_by_name.values():
        yield message.full_name
        for field in message.fields:
            kind = field.message_type or field.enum_type
            named = kind.full_name if kind else field.type
            label = "repeated " if field.is_repeated else "optional " if field.has_presence else ""
            yield f"{message.full_name} {field.number} {field.name} {label}{named}"


def test_the_wire_is_what_it_was():
    told = "".join(f"{line}\n" for module in OURS for line in described(module.DESCRIPTOR))
    assert told == WIRE.read_text(), f"a change of the wire breaks clients; if it may, put it into {WIRE.name}"
