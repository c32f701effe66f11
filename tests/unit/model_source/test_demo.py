from pathlib import Path

import attrs
import pytest

from triolet.errors import ConfigError
from triolet.model_source.demo import DEMOS, demo_directory, demo_parts
from triolet.model_source.progress import silent


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "cache"))


def install(site: Path, package: str, file: str, content: bytes) -> None:
    """Make an installed distribution with one data file, as pip would."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{file},,\n{info.name}/METADATA,,\n")
    (site / file).parent.mkdir(exist_ok=True)
    (site / file).write_bytes(content)


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = attrs.evolve(DEMOS["demo"], packages=("no-such-package-of-ours",))
    monkeypatch.setitem(DEMOS, "demo", missing)
    with pytest.raises(ConfigError, match="not installed; run `triolet pull demo`"):
        demo_directory("demo", silent)


def test_parts_are_found_in_order_without_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (2, 1):
        install(tmp_path, f"odd-model-part{part}", f"pkg{part}/m.gguf.part0{part}", b"GGUF")
        (tmp_path / f"pkg{part}/__init__.py").write_text("raise ImportError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    demo = attrs.evolve(DEMOS["demo"], packages=("odd-model-part1", "odd-model-part2"))
    monkeypatch.setitem(DEMOS, "demo", demo)
    names = [path.name for path in demo_parts("demo")]
    assert names == ["m.gguf.part01", "m.gguf.part02"]


def test_file_that_is_not_the_published_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "forged-model", "forged/m.gguf", b"GGUF forged")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(DEMOS, "demo", attrs.evolve(DEMOS["demo"], packages=("forged-model",)))
    with pytest.raises(ConfigError, match="is not the one that was published"):
        demo_directory("demo", silent)


def test_package_without_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "empty-model", "empty/m.gguf", b"")
    (tmp_path / "empty/m.gguf").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(DEMOS, "demo", attrs.evolve(DEMOS["demo"], packages=("empty-model",)))
    with pytest.raises(ConfigError, match="has no GGUF file any more"):
        demo_directory("demo", silent)
