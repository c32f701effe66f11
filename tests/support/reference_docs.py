"""Writes docs/reference/configuration.md from the config classes.

Run it after changing a setting: python tests/support/reference_docs.py
"""

import builtins
import json
import types
import typing
from pathlib import Path

import attrs
import docstring_parser

from triolet.cli.settings import GROUPS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/configuration.md"

HEAD = """\
# Configuration

<!-- written by tests/support/reference_docs.py; change the docstrings in config.py instead -->

Every setting is a flag of the command line, an environment variable, a key of the TOML file and,
except for those of the tables `server` and `log`, an argument of `triolet.open_engine`:

| | |
|---|---|
| flag | `--max-num-seqs 8` |
| variable | `TRIOLET_MAX_NUM_SEQS=8` |
| file | `max_num_seqs = 8`, at the top or in its table |
| Python | `triolet.open_engine("demo", max_num_seqs=8)` |

A flag beats a variable, a variable beats the file, the file beats the default. The file is named
by `--config FILE` or `TRIOLET_CONFIG`; one file may serve all commands. `triolet config show`
prints every value in force and where it comes from. A name that does not exist is an error in a
flag, in the file and in Python; for a variable it is a warning.

- Lists: repeat the flag, separate by spaces in a variable, a list in the file.
- Switches: `--batch-invariant` and `--no-batch-invariant`, `true` and `false` elsewhere.
- Tables: `--logits-processors.NAME package.module:function`.

Two variables are no settings: `TRIOLET_CACHE` is the directory for converted models
(`~/.cache/triolet` if unset), `TRIOLET_CONFIG` the file. Variables of huggingface_hub (`HF_HOME`,
`HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`) mean what they mean there.

`triolet serve` runs its worker in a process unless `runner` is set: it can be killed and replaced.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_table(name, group) for name, group in GROUPS.items())])


def _table(name: str, group: type[attrs.AttrsInstance]) -> str:
    doc = docstring_parser.parse(group.__doc__ or "")
    helps = {param.arg_name: param.description or "" for param in doc.params}
    lines = [f"## [{name}]", "", doc.short_description or "", ""]
    lines += ["| setting | type | default | |", "|---|---|---|---|"]
    hints = typing.get_type_hints(group)
    for field in attrs.fields(group):
        help_text = " ".join(helps[field.name].split()).replace("|", "\\|")
        lines.append(
            f"| `{field.name}` | {_type(hints[field.name])} | {_default(field)} | {help_text} |"
        )
    return "\n".join([*lines, ""])


def _type(hint: object) -> str:
    """A type for people: choices are listed, None is "unset"."""
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return ", ".join(f"`{choice}`" for choice in arguments)
        case types.UnionType | typing.Union:
            given = [_type(argument) for argument in arguments if argument is not type(None)]
            return " or ".join([*given, "unset"])
        case builtins.tuple:
            return f"list of {_type(arguments[0])}"
        case builtins.dict:
            return f"table of {_type(arguments[1])}"
    assert isinstance(hint, type), hint
    return hint.__name__


def _default(field: "attrs.Attribute[object]") -> str:
    default = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a class at run time
        default = default.factory()  # type: ignore[attr-defined]
    if default is None or default == () or default == {}:
        return ""
    return f"`{json.dumps(default)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
