"""Write a configuration to start from: every key with its default and what it does."""

from __future__ import annotations

from ister.config.sections import PLACES, KeyDoc, SectionDoc, whole_file

_HEAD = """\
# Configuration of Ister, with every key. A line that begins with "# key:" is optional: take out the "# " to set it.
#
# ister config check FILE           is it right?
# ister config show --config FILE   what is in force, and where does each value come from?
#
# "${NAME}" in a value is taken from the environment; write secrets that way.
"""


def starter() -> str:
    """Return the text of the file."""
    lines = [_HEAD]
    file = whole_file()
    for key in file.keys:
        lines += _key(key, "")
    for section in file.inner:
        lines += ["", *_section(section, "")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(section: SectionDoc, indent: str) -> list[str]:
    name = section.path.rpartition(".")[2]
    lines = [f"{indent}# {section.what}", f"{indent}{name}:"]
    for key in section.keys:
        lines += _key(key, f"{indent}  ")
    for inner in section.inner:
        lines += ["", *_section(inner, f"{indent}  ")]
    return lines


def _key(key: KeyDoc, indent: str) -> list[str]:
    about = f"{indent}# {key.what} ({key.allowed})"
    if key.name in {"options", "properties"}:
        return [about, f"{indent}# {key.name}:", f"{indent}#   name: value"]
    # A place stays open, so that --data-dir can give it.
    if key.path in PLACES or not key.default or key.allowed.endswith("; with s3"):
        return [about, f"{indent}# {key.name}: {key.default or key.example}"]
    return [about, f"{indent}{key.name}: {key.default}"]
