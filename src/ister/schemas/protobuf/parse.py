"""Parser of .proto files: proto2 and proto3 text to the descriptor that protoc would make of it.

A parser of our own, because none that could be used is available when the broker runs: protoc is a compiler for
development, and the parser for Python takes seconds for a large file, in an unbounded recursion. Ours reads each of a
bounded number of tokens once, and protobuf's own library resolves and checks the result. The tests compare it with
protoc. Options are skipped, but for `allow_alias`; extensions and services as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto

DEPTH_MAX: Final = 32
NUMBER_MAX: Final = (1 << 29) - 1
ENUM_NUMBER_MAX: Final = (1 << 31) - 1

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<name>\.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    |(?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[{}\[\]()<>=;,:+\-/.])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LABELS: Final = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
SCALARS: Final = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in {"TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM"}
}


class TextError(Exception):
    """A syntax error in a .proto file."""


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse_text(text: str, name: str) -> FileDescriptorProto:
    """Parse a .proto file, or raise TextError. Its imports are listed, not resolved."""
    return _Parser(list(_tokens(text)), name).parse()


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise TextError(f"line {line} has {text[at : at + 20]!r}, which is nothing in Protobuf")
        kind = match.lastgroup or "space"
        if kind != "space":
            yield _Token(kind, match.group(), line)
        line += match.group().count("\n")
        at = match.end()


class _Parser:
    """Reads tokens, one after the other."""

    def __init__(self, tokens: list[_Token], name: str) -> None:
        self._tokens = tokens
        self._at = 0
        self._file = FileDescriptorProto(name=name)
        self._proto3 = False

    def parse(self) -> FileDescriptorProto:
        if self._take_word("syntax"):
            self._expect("=")
            syntax = self._string()
            if syntax not in {"proto2", "proto3"}:
                raise self._wrong(f"the syntax {syntax!r} is not known")
            self._expect(";")
            self._proto3 = syntax == "proto3"
            if self._proto3:
                self._file.syntax = syntax
        elif self._take_word("edition"):
            raise self._wrong("editions cannot be read as text; send a FileDescriptorSet")
        while self._at < len(self._tokens):
            self._statement()
        return self._file

    def _statement(self) -> None:
        word = self._next().text
        match word:
            case ";":
                pass
            case "package":
                self._file.package = self._qualified()
                self._expect(";")
            case "import":
                _ = self._take_word("public") or self._take_word("weak")
                self._file.dependency.append(self._string())
                self._expect(";")
            case "option":
                self._option()
            case "message":
                self._message(self._file.message_type.add(name=self._word()), 1)
            case "enum":
                self._enum(self._file.enum_type.add())
            case "service" | "extend":
                self._qualified()
                self._skip_block()
            case _:
                raise self._wrong(f"{word!r} begins nothing")

    # --- messages -----------------------------------------------------------------------------------------------------

    def _message(self, message: DescriptorProto, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._wrong(f"messages are nested deeper than {DEPTH_MAX} levels")
        self._expect("{")
        while not self._take("}"):
            self._message_part(message, depth)
        # Real oneofs come first, then one of its own for each field that proto3 calls optional.
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _message_part(self, message: DescriptorProto, depth: int) -> None:
        token = self._next()
        after = self._tokens[self._at].text if self._at < len(self._tokens) else ""
        match token.text:
            case ";":
                pass
            case "message" if _WORD.fullmatch(after):
                self._message(message.nested_type.add(name=self._word()), depth + 1)
            case "enum" if _WORD.fullmatch(after):
                self._enum(message.enum_type.add())
            case "option":
                self._option()
            case "oneof" if _WORD.fullmatch(after):
                self._oneof(message, depth)
            case "reserved":
                self._reserved(lambda start, stop: message.reserved_range.add(start=start, end=stop + 1), message)
            case "extensions":
                self._ranges(lambda start, stop: message.extension_range.add(start=start, end=stop + 1), NUMBER_MAX)
                self._options()
                self._expect(";")
            case "extend":
                self._qualified()
                self._skip_block()
            case "map" if after == "<":
                self._map(message)
            case _:
                self._at -= 1
                self._labelled(message, depth)

    def _labelled(self, message: DescriptorProto, depth: int) -> None:
        label = _LABELS.get(self._peek().text)
        if label is not None:
            self._next()
        elif not self._proto3:
            raise self._wrong("in proto2 a field is required, optional or repeated")
        if self._proto3 and label == FieldDescriptorProto.LABEL_REQUIRED:
            raise self._wrong("in proto3 no field is required")
        field = self._field(message, depth, label or FieldDescriptorProto.LABEL_OPTIONAL)
        if self._proto3 and label == FieldDescriptorProto.LABEL_OPTIONAL:
            field.proto3_optional = True

    def _oneof(self, message: DescriptorProto, depth: int) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._word())
        self._expect("{")
        while not self._take("}"):
            if self._take(";"):
                continue
            if self._take_word("option"):
                self._option()
            else:
                self._field(message, depth, FieldDescriptorProto.LABEL_OPTIONAL).oneof_index = index

    def _field(
        self, message: DescriptorProto, depth: int, label: FieldDescriptorProto.Label.ValueType
    ) -> FieldDescriptorProto:
        kind = self._qualified()
        field = message.field.add(label=label)
        group = None
        if kind == "group" and self._peek(1).text == "=":
            if self._proto3:
                raise self._wrong("proto3 has no groups")
            group = message.nested_type.add(name=self._word())
            field.name, field.type_name = group.name.lower(), group.name
            field.type = FieldDescriptorProto.TYPE_GROUP
        else:
            self._set_type(field, kind)
            field.name = self._word()
        self._expect("=")
        field.number = self._integer(1, NUMBER_MAX)
        self._options()
        if group is None:
            self._expect(";")
        else:
            self._message(group, depth + 1)
        return field

    def _map(self, message: DescriptorProto) -> None:
        self._expect("<")
        key = self._qualified()
        if key not in SCALARS or key in {"float", "double", "bytes"}:
            raise self._wrong(f"a map cannot have keys of type {key}")
        self._expect(",")
        value = self._qualified()
        self._expect(">")
        name = self._word()
        entry = message.nested_type.add(name=map_entry_name(name))
        entry.options.map_entry = True
        for number, (part, kind) in enumerate((("key", key), ("value", value)), start=1):
            inner = entry.field.add(name=part, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            self._set_type(inner, kind)
        self._expect("=")
        message.field.add(
            name=name,
            number=self._integer(1, NUMBER_MAX),
            label=FieldDescriptorProto.LABEL_REPEATED,
            type=FieldDescriptorProto.TYPE_MESSAGE,
            type_name=entry.name,
        )
        self._options()
        self._expect(";")

    def _set_type(self, field: FieldDescriptorProto, kind: str) -> None:
        if kind in SCALARS:
            field.type = SCALARS[kind]
        else:
            field.type_name = kind  # a message or an enum: the library finds out which

    # --- enums --------------------------------------------------------------------------------------------------------

    def _enum(self, enum: EnumDescriptorProto) -> None:
        enum.name = self._word()
        self._expect("{")
        while not self._take("}"):
            if self._take(";"):
                continue
            if self._peek(1).text != "=" and self._take_word("option"):
                if self._option() == "allow_alias":
                    enum.options.allow_alias = True
            elif self._peek(1).text != "=" and self._take_word("reserved"):
                self._reserved(lambda start, stop: enum.reserved_range.add(start=start, end=stop), enum)
            else:
                value = enum.value.add(name=self._word())
                self._expect("=")
                value.number = self._integer(-ENUM_NUMBER_MAX - 1, ENUM_NUMBER_MAX)
                self._options()
                self._expect(";")

    # --- what messages and enums share --------------------------------------------------------------------------------

    def _reserved(self, add: Callable[[int, int], object], owner: DescriptorProto | EnumDescriptorProto) -> None:
        if self._peek().kind == "text":
            owner.reserved_name.append(self._string())
            while self._take(","):
                owner.reserved_name.append(self._string())
        else:
            self._ranges(add, NUMBER_MAX if hasattr(owner, "field") else ENUM_NUMBER_MAX)
        self._expect(";")

    def _ranges(self, add: Callable[[int, int], object], most: int) -> None:
        least = 1 if most == NUMBER_MAX else -most - 1
        while True:
            start = stop = self._integer(least, most)
            if self._take_word("to"):
                stop = most if self._take_word("max") else self._integer(start, most)
            add(start, stop)
            if not self._take(","):
                return

    def _option(self) -> str:
        """Skip an option; returns its name if its value is `true`."""
        name = self._assignment()
        self._expect(";")
        return name

    def _options(self) -> None:
        if not self._take("["):
            return
        self._assignment()
        while not self._take("]"):
            self._expect(",")
            self._assignment()

    def _assignment(self) -> str:
        name = ""
        while not self._take("="):
            token = self._next()
            if token.kind != "name" and token.text not in {"(", ")", "."}:
                raise self._wrong(f"{token.text!r} cannot be in the name of an option")
            name += token.text
        if self._peek().text == "{":
            self._skip_block()
            return ""
        _ = self._take("-") or self._take("+")
        token = self._next()
        if token.kind == "mark":
            raise self._wrong(f"{token.text!r} is no value")
        while token.kind == "text" and self._at < len(self._tokens) and self._peek().kind == "text":
            self._next()
        return name if token.text == "true" else ""

    def _skip_block(self) -> None:
        self._expect("{")
        depth = 1
        while depth:
            text = self._next().text
            depth += (text == "{") - (text == "}")

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> _Token:
        if self._at + ahead >= len(self._tokens):
            raise TextError("the text ends too early")
        return self._tokens[self._at + ahead]

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _take(self, mark: str) -> bool:
        if self._peek().text != mark:
            return False
        self._at += 1
        return True

    def _take_word(self, word: str) -> bool:
        return self._at < len(self._tokens) and self._take(word)

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._wrong(f"{mark!r} is missing before {self._peek().text[:40]!r}", behind=False)

    def _word(self) -> str:
        name = self._qualified()
        if _WORD.fullmatch(name) is None:
            raise self._wrong(f"{name[:40]!r} is no name")
        return name

    def _qualified(self) -> str:
        token = self._next()
        if token.kind != "name":
            raise self._wrong(f"{token.text[:40]!r} is no name")
        return token.text

    def _string(self) -> str:
        token = self._next()
        if token.kind != "text":
            raise self._wrong(f"{token.text[:40]!r} should be a text in quotes")
        return token.text[1:-1]

    def _integer(self, least: int, most: int) -> int:
        negative = self._take("-")
        token = self._next()
        try:
            octal = len(token.text) > 1 and token.text.startswith("0") and token.text.isdigit()
            number = int(token.text, 8 if octal else 0)
        except ValueError:
            raise self._wrong(f"{token.text[:40]!r} is no integer") from None
        number = -number if negative else number
        if not least <= number <= most:
            raise self._wrong(f"the number {number if abs(number) < 1 << 64 else '…'} is not from {least} to {most}")
        return number

    def _wrong(self, reason: str, *, behind: bool = True) -> TextError:
        token = self._tokens[max(0, min(self._at - behind, len(self._tokens) - 1))]
        return TextError(f"line {token.line}: {reason}")


def map_entry_name(field: str) -> str:
    """Return the name of the message of a map's entries: `ByKeyEntry` for the field `by_key`."""
    return f"{''.join(part[:1].upper() + part[1:] for part in field.split('_'))}Entry"
