"""What one key of the file is to everyone: its type, default, bounds, and what the docs say of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from ister.config import forms

DATA_DIR = Path("danube-data")
"""Where everything lives when nothing else is said."""

TEXT_MAX = 64 * 1024
"""The longest value, in characters, after variables are filled in."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Secret = Annotated[SecretStr, Field(min_length=1, max_length=TEXT_MAX)]
FilePath = Annotated[Path, BeforeValidator(forms.path_text)]
Address = Annotated[Text, AfterValidator(forms.endpoint)]
OPTION_NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
OptionName = Annotated[str, StringConstraints(pattern=rf"^{OPTION_NAME}$")]


class Clash(NamedTuple):
    """Two keys that contradict each other, or one that needs the other; with dots where they are deeper."""

    key: str
    other: str
    reason: str


class Note(NamedTuple):
    """What the docs say of a key beside its type and bounds."""

    allowed: str
    example: str
    backends: tuple[str, ...]


def setting(
    what: str, *, default: object, allowed: str = "", example: str = "", backends: tuple[str, ...] = (), **bounds: Any
) -> Any:
    """Describe one key; `allowed` only where type and bounds do not say it, `example` where the default is nothing."""
    extra: Any = {"note": Note(allowed, example, backends)}
    return Field(default, description=what, json_schema_extra=extra, **bounds)


def note_of(field: FieldInfo) -> Note:
    """Return what `setting` noted."""
    extra: Any = field.json_schema_extra
    note: Note = extra["note"]
    return note


def refuse(clashes: Iterator[Clash]) -> None:
    """Refuse a section whose keys contradict each other."""
    found = list(clashes)
    if found:
        # The loader reports them all from here; a program that builds a section by hand sees the first.
        raise PydanticCustomError("clash", "{key} {reason}", {**found[0]._asdict(), "clashes": found})


class Section(BaseModel):
    """A part of the file; its values never change, and keys that it does not have are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        refuse(self._clashes())
        return self

    def _clashes(self) -> Iterator[Clash]:
        """Give the keys that contradict each other; most sections have none that could."""
        return iter(())

    def _given(self) -> set[str]:
        """Return the keys that were set, and not to nothing."""
        return {name for name in self.model_fields_set if getattr(self, name) is not None}
