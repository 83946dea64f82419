"""The object cache: what is damaged, foreign or in the way costs a compilation, and nothing else."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import python

import backstroke as bs
from backstroke.jit import cache, launch
from backstroke.jit import compile as compiler

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are those of POSIX")
root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
KEY = bytes(range(32))
IMAGE = bytes(i * 7 % 251 for i in range(5000))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder that is not there yet."""
    computed()  # pool and launcher, which a process makes once, are there
    place = tmp_path / "some" / "cache"
    use(monkeypatch, str(place))
    yield place
    monkeypatch.undo()
    cache.folder.cache_clear()
    launch.forget_all()


def use(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("BACKSTROKE_CACHE_DIR", place)
    monkeypatch.setattr(cache, "_trouble", "")
    cache.folder.cache_clear()


def computed() -> tuple[int, int]:
    """Use an op as a new process would -> how many kernels were compiled, and how many loaded from the cache."""
    compiler._compiled.clear()
    launch.forget_all()
    compiled, loaded = compiler.counts.compiled, compiler.counts.loaded
    x = np.linspace(-1, 1, 1001, dtype=np.float32)
    np.testing.assert_array_equal(bs.relu_grad(x, x), np.maximum(x, 0))
    return compiler.counts.compiled - compiled, compiler.counts.loaded - loaded


def files(place: Path) -> list[Path]:
    return sorted(place.iterdir())


def filled(place: Path) -> list[Path]:
    """The files after a first use, which are good: a second use loads them all."""
    compiled, loaded = computed()
    assert compiled > 0
    assert loaded == 0
    assert computed() == (0, compiled)
    assert cache.trouble() == ""
    assert len(files(place)) == compiled
    return files(place)


@posix
def test_folder_and_files_are_private(folder: Path) -> None:
    before = os.umask(0)
    try:
        names = filled(folder)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(name.stat().st_mode) for name in names} == {0o600}
    assert all(name.suffix == ".o" and len(name.stem) == 64 for name in names)  # and no temporary file


def test_what_was_written_is_read(folder: Path) -> None:
    for image in (b"", b"x", IMAGE):
        cache.write(KEY, image)
        assert cache.read(KEY) == image
    assert cache.read(KEY[::-1]) is None
    assert cache.trouble() == ""


def test_every_flipped_bit_is_noticed(folder: Path) -> None:
    cache.write(KEY, IMAGE)
    (path,) = files(folder)
    good = path.read_bytes()
    offsets = [*range(cache._HEADER.size + 8), *range(cache._HEADER.size + 8, len(good), 97), len(good) - 1]
    for offset in offsets:
        bad = bytearray(good)
        bad[offset] ^= 1 << offset % 8
        path.write_bytes(bad)
        assert cache.read(KEY) is None, offset
        assert "damaged" in cache.trouble()
    path.write_bytes(good)
    assert cache.read(KEY) == IMAGE


def test_every_other_length_is_noticed(folder: Path) -> None:
    cache.write(KEY, IMAGE)
    (path,) = files(folder)
    good = path.read_bytes()
    head = cache._HEADER.size
    for length in [*range(head + 3), head + len(IMAGE) // 2, len(good) - 2, len(good) - 1]:
        path.write_bytes(good[:length])
        assert cache.read(KEY) is None, length
        assert "cut short" in cache.trouble() or "damaged" in cache.trouble()
    for more in (b"\0", good):
        path.write_bytes(good + more)
        assert cache.read(KEY) is None


def test_a_file_under_the_name_of_another_is_noticed(folder: Path) -> None:
    other = KEY[::-1]
    cache.write(KEY, IMAGE)
    shutil.copy(folder / cache._name(KEY), folder / cache._name(other))
    assert cache.read(other) is None
    assert "damaged" in cache.trouble()


def test_a_file_larger_than_any_kernel_is_not_even_read(folder: Path) -> None:
    cache.write(KEY, IMAGE)
    (path,) = files(folder)
    os.truncate(path, cache._LARGEST + 1)
    assert cache.read(KEY) is None
    assert "not a file of object code" in cache.trouble()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def let_all_write(path: Path) -> None:
    path.chmod(0o666)


def let_the_group_write(path: Path) -> None:
    path.chmod(0o620)


def link(path: Path) -> None:
    kept = path.rename(path.with_name(f"real-{path.name}"))
    path.symlink_to(kept)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def give_away(path: Path) -> None:
    os.chown(path, 12345, 12345)


CURABLE = [
    (flip, "damaged"),
    (cut, "damaged"),
    (empty, "cut short"),
    pytest.param(let_all_write, "can be written by others", marks=posix),
    pytest.param(let_the_group_write, "can be written by others", marks=posix),
    pytest.param(link, os.strerror(errno.ELOOP), marks=posix),
    pytest.param(make_fifo, "not a file of object code", marks=posix),
    pytest.param(give_away, "belongs to another user", marks=root),
]


@pytest.mark.parametrize(("spoil", "words"), CURABLE)
def test_a_file_that_cannot_be_trusted_is_compiled_anew_and_replaced(folder: Path, spoil: Any, words: str) -> None:
    names = filled(folder)
    for path in names:
        spoil(path)
    assert computed() == (len(names), 0)
    assert words in bs.info()["object_cache_trouble"]
    assert computed() == (0, len(names))  # the new files are good


def test_a_folder_in_place_of_a_file(folder: Path) -> None:
    names = filled(folder)
    for path in names:
        path.unlink()
        path.mkdir()
    assert computed() == (len(names), 0)
    assert bs.info()["object_cache_trouble"]
    assert files(folder) == names  # no temporary file is left


@posix
def test_a_folder_that_others_can_write_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = filled(folder)
    for mode in (0o777, 0o770, 0o1777):
        folder.chmod(mode)
        assert computed() == (len(names), 0)
        assert "can be written by others" in bs.info()["object_cache_trouble"]
    for path in names:
        path.unlink()
    computed()
    assert files(folder) == []
    folder.chmod(0o700)
    monkeypatch.setattr(cache, "_trouble", "")
    assert filled(folder)


@posix
def test_a_link_to_a_folder_is_as_good_as_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = filled(folder)
    folder.with_name("link").symlink_to(folder)
    use(monkeypatch, str(folder.with_name("link")))
    assert computed() == (0, len(names))
    folder.chmod(0o777)
    assert computed() == (len(names), 0)
    assert "can be written by others" in bs.info()["object_cache_trouble"]


@root
def test_a_folder_of_somebody_else_is_not_used(folder: Path) -> None:
    names = filled(folder)
    give_away(folder)
    assert computed() == (len(names), 0)
    assert "belongs to another user" in bs.info()["object_cache_trouble"]


@posix
def test_whoever_is_not_the_owner_uses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = filled(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert computed() == (len(names), 0)
    assert "belongs to another user" in cache.trouble()


def test_a_folder_below_a_file(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "cache"):
        use(monkeypatch, str(place))
        compiled, loaded = computed()
        assert compiled
        assert not loaded
        assert bs.info()["object_cache_trouble"]
    assert (tmp_path / "file").read_text() == "in the way"


def failing(error: OSError) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("function", ["mkstemp", "replace", "mkdir"])
def test_a_disk_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    if function != "mkdir":
        folder.mkdir(parents=True, mode=0o700)
    owner: Any = {"mkstemp": tempfile, "replace": os, "mkdir": Path}[function]
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, failing(OSError(errno.EROFS, os.strerror(errno.EROFS))))
        compiled, _ = computed()
    assert compiled
    assert os.strerror(errno.EROFS) in bs.info()["object_cache_trouble"]
    assert not folder.exists() or files(folder) == []
    monkeypatch.setattr(cache, "_trouble", "")
    assert filled(folder)


def test_a_disk_that_is_full_in_the_middle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdopen

    def fdopen(descriptor: int, mode: str) -> Any:
        file = real(descriptor, mode)
        if "w" not in mode:
            return file

        class Full:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: Any) -> None:
                file.close()

            def write(self, content: bytes) -> None:
                file.write(content[:100])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return Full()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", fdopen)
        compiled, _ = computed()
    assert compiled
    assert os.strerror(errno.ENOSPC) in bs.info()["object_cache_trouble"]
    assert files(folder) == []
    monkeypatch.setattr(cache, "_trouble", "")
    assert filled(folder)


@root
def test_a_disk_that_is_really_full(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k,mode=0700", "none", disk], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (disk / "filler").write_bytes(bytes(12 << 10))
        use(monkeypatch, str(disk))
        cache.write(KEY, bytes(20000))
        assert os.strerror(errno.ENOSPC) in cache.trouble()
        assert cache.read(KEY) is None
        computed()
        assert not [path for path in files(disk) if path.name.startswith(".new")]
    finally:
        subprocess.run(["umount", disk], check=True)


@posix
def test_a_read_only_folder_under_an_ordinary_user() -> None:
    """Root may write anywhere, so the process becomes somebody else after its imports."""
    code = """
        import os, tempfile
        import numpy as np, backstroke as bs
        import backstroke.jit.trace, backstroke.jit.functions  # sources may be out of reach for that user
        from backstroke.jit import compile as compiler
        compiler._fingerprint()
        place = tempfile.mkdtemp()
        nobody = 65534
        if os.geteuid() == 0:
            os.chown(place, nobody, nobody)
        os.environ["BACKSTROKE_CACHE_DIR"] = place
        os.chmod(place, 0o500)
        if os.geteuid() == 0:
            os.setuid(nobody)
        x = np.linspace(-1, 1, 9, dtype=np.float32)
        assert (bs.relu_grad(x, x) == np.maximum(x, 0)).all()
        assert bs.info()["kernels_compiled"] > 0
        assert os.listdir(place) == []
        print(bs.info()["object_cache_trouble"])
        os.rmdir(place) if os.access(os.path.dirname(place), os.W_OK) else None
    """
    assert "PermissionError" in python(code)


def test_an_empty_name_turns_it_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "")
    monkeypatch.chdir(folder.parent.parent)
    for _ in range(2):
        compiled, loaded = computed()
        assert compiled
        assert not loaded
    assert bs.info()["object_cache"] == "off"
    assert bs.info()["object_cache_trouble"] == ""
    assert os.listdir() == []


def test_without_a_name_it_lies_in_the_folder_of_the_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.delenv("BACKSTROKE_CACHE_DIR")
    cache.folder.cache_clear()
    assert cache.folder() == Path(platformdirs.user_cache_dir("backstroke", appauthor=False))


def test_eight_processes_may_fill_it_at_once(tmp_path: Path) -> None:
    code = """
        import sys
        import numpy as np, backstroke as bs
        x = np.linspace(-1, 1, 999, dtype=np.float32)
        sys.stdin.readline()
        for op in (bs.relu_grad, bs.sigmoid_grad, bs.softmax_grad):
            op(x, x)
        assert (bs.relu_grad(x, x) == np.maximum(x, 0)).all()
        info = bs.info()
        assert not info["object_cache_trouble"], info
        print(info["kernels_compiled"], info["kernels_from_cache"])
    """
    import textwrap

    place = tmp_path / "cache"
    environment = {**os.environ, "BACKSTROKE_CACHE_DIR": str(place)}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    options: dict[str, Any] = {"text": True, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
    racers = [subprocess.Popen(command, **options) for _ in range(8)]
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    numbers = [racer.communicate(timeout=120)[0] for racer in racers]
    assert all(racer.returncode == 0 for racer in racers)
    sums = {sum(map(int, line.split())) for line in numbers}
    assert len(sums) == 1  # all have the same kernels, compiled or loaded
    assert len(files(place)) == sums.pop()
    done = subprocess.run(command, input="go\n", capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split()[0] == "0"  # whatever the racers left is good


def test_the_key_tells_targets_and_sources_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from backstroke.jit import target

    names = filled(folder)
    monkeypatch.setattr(compiler, "_fingerprint", lambda above=False: "another version")
    assert computed() == (len(names), 0)
    monkeypatch.undo()
    use(monkeypatch, str(folder))
    for name in target.runnable()[1:]:
        with target.using(name):
            compiled, loaded = computed()
            assert compiled
            assert not loaded


def test_rooms_with_kernels_ask_nothing_of_the_rooms_above() -> None:
    """A kernel from below is known by the sources below: none of them may import from above."""
    package = Path(compiler.__file__).parents[1]
    above = {package / room for room in compiler._ABOVE}
    below = [path for room in package.iterdir() if room.is_dir() and room not in above for path in room.rglob("*.py")]
    assert len(below) > 30
    for path in [*below, package / "arrays.py", package / "geometry.py", package / "memory.py"]:
        for room in compiler._ABOVE:
            assert not re.search(rf"^\s*(from|import) .*\b{room}\b", path.read_text(), re.MULTILINE), path


def test_kernels_are_known_by_their_own_sources() -> None:
    from backstroke.activation import kernels
    from backstroke.training import kernels as above

    assert compiler._fingerprint() != compiler._fingerprint(True)
    assert not compiler._from_above(kernels.elementwise)
    assert compiler._from_above(above.update)
