"""The object cache under stress: many processes at once, kill -9 in the middle, a full disk, a read-only home."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import python

EVERY_OP = textwrap.dedent("""
    import hashlib, numpy as np, backstroke as bs
    from backstroke.registry import OPS, results
    digest = hashlib.sha256()
    for op in OPS:
        arguments, keywords = op.example(np.random.default_rng(0), op.small, np.float32)
        for a in results(op.function(*arguments, **keywords)):
            digest.update(a.tobytes())
    info = bs.info()
    print(digest.hexdigest(), info["kernels_compiled"], info["kernels_from_cache"], repr(info["object_cache_trouble"]))
""")


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", EVERY_OP],
        env={**os.environ, "BACKSTROKE_CACHE_DIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert not err, err
    return out.split(maxsplit=3)


@pytest.fixture(scope="module")
def digest() -> str:
    """What every process must answer."""
    return python(EVERY_OP).split()[0]


def left_over(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if not p.name.endswith(".o")]


def test_sixteen_processes_start_cold_at_once(tmp_path: Path, digest: str) -> None:
    folder = tmp_path / "cache"
    answers = [finish(p) for p in [start(folder) for _ in range(16)]]
    assert {a[0] for a in answers} == {digest}
    assert {a[3].strip() for a in answers} == {"''"}
    assert not left_over(folder)
    again = finish(start(folder))
    assert again[:2] == [digest, "0"]


def test_kill_in_the_middle(tmp_path: Path, digest: str) -> None:
    """Whatever is left behind is whole, or passed over."""
    folder = tmp_path / "cache"
    for turn in range(8):
        process = start(folder)
        begin = time.monotonic()
        while not (folder.exists() and len(list(folder.iterdir())) > turn) and process.poll() is None:
            assert time.monotonic() - begin < 120
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert finish(start(folder))[0] == digest
    last = finish(start(folder))
    assert last[:2] == [digest, "0"]


def test_a_file_that_is_half_written_or_changed_is_made_anew(tmp_path: Path, digest: str) -> None:
    folder = tmp_path / "cache"
    finish(start(folder))
    files = sorted(folder.glob("*.o"))
    for n, path in enumerate(files):
        content = bytearray(path.read_bytes())
        if n % 3 == 0:
            path.write_bytes(content[: len(content) // 2])
        elif n % 3 == 1:
            content[-n - 1] ^= 0x40
            path.write_bytes(content)
    assert finish(start(folder))[0] == digest


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"a tmpfs cannot be mounted: {error}")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk(full_disk: Path, digest: str) -> None:
    found = finish(start(full_disk))
    assert found[0] == digest
    assert "No space left" in found[3]
    assert not left_over(full_disk)
    assert finish(start(full_disk))[0] == digest


@pytest.mark.parametrize("home", ["read-only", "absent", "a file"])
def test_a_home_that_cannot_be_written(home: str, tmp_path: Path, digest: str) -> None:
    place = tmp_path / "home"
    if home == "read-only":
        place.mkdir(mode=0o500)
    elif home == "a file":
        place.write_text("")
    environment = {k: v for k, v in os.environ.items() if k not in ("BACKSTROKE_CACHE_DIR", "XDG_CACHE_HOME")}
    command = [sys.executable, "-c", EVERY_OP]
    if os.geteuid() == 0:  # root may write anywhere; as somebody else, where that is possible
        command = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", *command]
        probe = subprocess.run(
            [*command[:4], sys.executable, "-c", "import backstroke"], capture_output=True, check=False
        )
        if probe.returncode:
            pytest.skip("this is root, and nobody else may run this Python here")
    done = subprocess.run(command, env={**environment, "HOME": str(place)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = done.stdout.split(maxsplit=3)
    assert found[0] == digest
    assert found[3].strip() != "''"
