"""Non-functional rules of the code itself (after tigerbeetle's src/tidy.zig)."""

from pathlib import Path

import pytest

from support import arch

BANNED = {  # text -> (what to use instead, files where it is allowed)
    "trio.open_memory_channel": ("triolet.actor.channel.Channel", ("actor/channel.py",)),
    "os.environ": ("a field of EngineConfig", ("config.py",)),
    "os.getenv": ("a field of EngineConfig", ("config.py",)),
    "except BaseException:": (
        "let Cancelled pass; see docs/explanation/cancellation.md",
        (
            "runner/worker.py",
            "actor/supervisor.py",
            "engine/portal.py",
            "engine/blocking_portal.py",
        ),
    ),
    "shield=True": ("bounded_shield(seconds, reason)", ("actor/supervisor.py",)),
    "FIXME": ("nothing: finish it before merging", ()),
}
FILES = [p for base in (arch.SRC, arch.KERNELS) for p in sorted(base.rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(arch.ROOT)))
def test_tidy(path: Path) -> None:
    text = path.read_text()
    for banned, (instead, places) in BANNED.items():
        if not str(path).endswith(places or ("/",)):
            assert banned not in text, f"{banned}: use {instead}"
