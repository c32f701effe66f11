"""The `triolet` program: parse, dispatch, and one sentence for what went wrong.

Exit codes: 0 done, 1 failed while running, 2 wrong command line or configuration, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Env

from triolet.cli.settings import ENV_PREFIX, Sources, stray_variables
from triolet.errors import ConfigError, TrioletError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""

app = App(
    name="triolet",
    help="An LLM serving engine built as a tree of trio actors.",
    version=lambda: f"triolet {importlib.metadata.version('triolet')}",
    exit_on_error=False,
    print_error=False,
    help_on_error=False,
    result_action="return_value",
    usage="Usage: triolet COMMAND [MODEL] [OPTIONS]",
    help_epilogue=(
        "Every option of a command can also be set by a variable TRIOLET_OPTION or in a TOML "
        "file (--config FILE or TRIOLET_CONFIG). A flag beats a variable beats the file."
    ),
)
app.config = (Env(ENV_PREFIX, command=False),)  # for the help; a command line adds the file

COMMANDS = {
    "serve": ("triolet.cli.serve:serve", "Serve a model over an OpenAI-compatible HTTP API."),
    "chat": ("triolet.cli.chat:chat", "Chat with a model in the terminal."),
    "pull": ("triolet.cli.pull:pull", "Fetch a model before it is needed."),
    "doctor": ("triolet.cli.doctor:doctor", "Check the installation and the machine."),
    "bench": ("triolet.cli.bench.commands:bench_app", "Measure an engine or a server."),
    "simulate": (
        "triolet.cli.simulate:simulate",
        "Play scenarios of faults against the real engine, on a virtual clock.",
    ),
    "config": ("triolet.cli.show_config:config_app", "Look at the settings in force."),
}
"""Name -> what runs, imported only then, and a line for the list of commands."""

for _name, (_target, _help) in COMMANDS.items():
    app.command(_target, name=_name, help=_help)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Path | None = None,
) -> int:
    """Run a command with the settings of a file.

    Args:
        tokens: The command and its arguments.
        config: TOML file with settings; tables [model], [cache], [scheduler], [runner],
            [limits], [server] and [log] may sort them.
    """
    sources = Sources(config)
    app.config = sources.chain
    command, bound, ignored = app.parse_args(tokens)
    if "sources" in ignored:
        for sentence in stray_variables():
            _say(sentence)
        bound.arguments["sources"] = sources
    code: int | None = command(*bound.args, **bound.kwargs)
    return code or 0


def run(tokens: Sequence[str]) -> int:
    """Run a command line; returns the exit code."""
    try:
        result = app.meta(tokens)
    except CycloptsError as error:
        return _fail(str(error), EXIT_USAGE)
    except ConfigError as error:
        return _fail(error.message, EXIT_USAGE)
    except TrioletError as error:
        return _fail(error.message, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BaseExceptionGroup as group:  # a nursery wraps what its tasks raise
        return _fail_by_group(group)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _fail_by_group(group: BaseExceptionGroup[BaseException]) -> int:
    """The first error that is ours speaks for the group; a bug keeps its traceback."""
    leaves = list(_leaves(group))
    if all(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return EXIT_INTERRUPTED
    ours = [leaf for leaf in leaves if isinstance(leaf, TrioletError)]
    if not ours:
        raise group
    return _fail(ours[0].message, EXIT_USAGE if isinstance(ours[0], ConfigError) else EXIT_FAILED)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _fail(message: str, code: int) -> int:
    _say(message)
    return code


def _say(message: str) -> None:
    print(f"triolet: {' '.join(message.split())}", file=sys.stderr)


def main() -> None:
    """Entry point of the program."""
    sys.exit(run(sys.argv[1:]))
