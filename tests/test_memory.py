"""The memory pool: what is lent, what comes back, and that no block is lent while anybody can still see it."""

from __future__ import annotations

import copy
import ctypes
import gc
import importlib.util
import os
import pickle
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import python, try_python

import backstroke as bs
from backstroke import arrays, memory
from backstroke.memory import SMALLEST, MemoryPool

MB = 1 << 20
BYTES, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)


@pytest.fixture
def pool() -> MemoryPool:
    return MemoryPool(limit=256 * MB)


def address(a: np.ndarray) -> int:
    return int(a.__array_interface__["data"][0])


def idle(pool: MemoryPool) -> int:
    return pool.info()["idle_bytes"]


def held(pool: MemoryPool) -> int:
    return pool.info()["held_bytes"]


# ---- what is lent --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SMALLEST, SMALLEST + 1, MB, 2 * MB - 1, 2 * MB, 2 * MB + 1, 5 * MB + 3])
def test_blocks_are_aligned_writable_and_large_enough(pool: MemoryPool, size: int) -> None:
    a, b = (pool.empty((size,), BYTES) for _ in range(2))
    for each in (a, b):
        assert address(each) % 64 == 0
        assert size < 2 * MB or address(each) % (2 * MB) == 0  # a huge page begins there
        assert each.flags.writeable
        assert each.flags.c_contiguous
        each[:] = 7
    assert address(a) + size <= address(b) or address(b) + size <= address(a)
    assert held(pool) >= 2 * size
    assert idle(pool) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, arrays.BFLOAT16, np.int8, bool], ids=str)
def test_arrays_have_the_shape_and_type_that_were_asked_for(pool: MemoryPool, dtype: Any) -> None:
    a = pool.empty((3, 1000, 701), np.dtype(dtype))
    assert (a.shape, a.dtype) == ((3, 1000, 701), np.dtype(dtype))
    a[...] = 1
    assert a.all()
    assert held(pool) > 0


def test_small_arrays_and_arrays_of_objects_are_ordinary_ones(pool: MemoryPool) -> None:
    for a in (
        pool.empty((SMALLEST - 1,), BYTES),
        pool.empty((0, 10**9), BYTES),
        pool.empty((), FLOAT32),
        pool.empty((MB,), np.dtype(object)),
    ):
        assert a.base is None
    assert held(pool) == 0


def test_a_block_comes_back_and_goes_out_again(pool: MemoryPool) -> None:
    a = pool.empty((MB,), BYTES)
    place = address(a)
    del a
    assert idle(pool) == held(pool) == MB
    for size in (MB, MB - 1000, MB * 7 // 8):
        b = pool.empty((size,), BYTES)
        assert address(b) == place
        del b
    much_smaller = pool.empty((MB // 2,), BYTES)
    assert address(much_smaller) != place
    larger = pool.empty((MB + 1,), BYTES)
    assert address(larger) != place


# ---- who still sees a block ----------------------------------------------------------------------------------------


def through_torch(a: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(a.view(np.uint8))[5:]


def through_dlpack(a: np.ndarray) -> Any:
    import torch

    return torch.from_dlpack(a)


def through_a_thread_that_waits(a: np.ndarray) -> Any:
    gate = threading.Event()
    thread = threading.Thread(target=lambda a: gate.wait(), args=(a,))
    thread.start()

    class Stop:
        def __del__(self) -> None:
            gate.set()
            thread.join()

    return Stop()


VIEWS: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda a: a,
    "base": lambda a: a.base,
    "slice": lambda a: a[100:200],
    "one element": lambda a: a[5:6],
    "slice of a view of a view": lambda a: a.reshape(4, -1)[1:].T[::2][3:].view(np.uint8),
    "memoryview": lambda a: memoryview(a),
    "memoryview of a slice": lambda a: memoryview(a)[100:200],
    "memoryview of the base": lambda a: memoryview(a.base),
    "frombuffer of the array": lambda a: np.frombuffer(a, np.uint8),
    "frombuffer of the base": lambda a: np.frombuffer(a.base, np.uint8)[7:],
    "ctypes of the array": lambda a: (ctypes.c_char * 100).from_buffer(a),
    "ctypes of the base": lambda a: (ctypes.c_char * 100).from_buffer(a.base),
    "ctypes attribute": lambda a: a.ctypes.data_as(ctypes.c_void_p),
    "array interface": lambda a: np.asarray(
        type("Holder", (), {"a": a, "__array_interface__": a.__array_interface__})()
    ),
    "matrix": lambda a: a.reshape(2, -1).view(np.matrix),
    "flat iterator": lambda a: a.flat,
    "nditer": lambda a: np.nditer(a),
    "broadcast": lambda a: np.broadcast_to(a[:1], (10, 10)),
    "bound method": lambda a: a.sum,
    "cycle": lambda a: (lambda box: box.append(box) or box)([a]),
    "thread": through_a_thread_that_waits,
}
if importlib.util.find_spec("torch"):
    VIEWS |= {"torch.from_numpy": through_torch, "torch.from_dlpack": through_dlpack}


@pytest.mark.parametrize("name", VIEWS)
def test_a_block_is_not_lent_while_something_sees_it(pool: MemoryPool, name: str) -> None:
    a = pool.empty((MB,), BYTES)
    a[:] = 17
    place = address(a)
    seen = VIEWS[name](a)
    del a
    gc.collect()
    others = [pool.empty((MB,), BYTES) for _ in range(3)]
    for other in others:
        other[:] = 99
        assert address(other) != place
    witness = np.frombuffer((ctypes.c_uint8 * MB).from_address(place), np.uint8)
    assert (witness == 17).all()
    pool.clear()
    assert (witness == 17).all()
    del witness, seen
    gc.collect()
    assert address(pool.empty((MB,), BYTES)) == place


def test_copies_have_memory_of_their_own(pool: MemoryPool) -> None:
    a = pool.empty((MB,), BYTES)
    a[:] = 3
    for other in (a.copy(), copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), np.array(a)):
        assert not np.shares_memory(a, other)
        assert (other == 3).all()
        del other
    # The base is of no use to anybody, but who copies it must not get the block, nor give it back.
    base = a.base
    other, new = copy.copy(base), type(base)()
    assert ctypes.addressof(other) != ctypes.addressof(base) != ctypes.addressof(new)
    del other, new
    assert idle(pool) == 0


def test_arrays_in_a_cycle_come_back_with_the_collector(pool: MemoryPool) -> None:
    gc.collect()
    box: list[Any] = [pool.empty((MB,), BYTES)]
    box.append(box)
    assert idle(pool) == 0
    del box
    gc.collect()
    assert idle(pool) == MB


def test_weak_references_hold_nothing(pool: MemoryPool) -> None:
    a = pool.empty((MB,), BYTES)
    seen = weakref.ref(a)
    del a
    assert seen() is None
    assert idle(pool) == MB


def test_a_pool_may_die_before_its_arrays() -> None:
    pool = MemoryPool(limit=64 * MB)
    a = pool.empty((4 * MB,), BYTES)
    a[:] = 5
    del pool
    gc.collect()
    assert (a == 5).all()


@pytest.mark.parametrize("seed", range(6))
def test_random_lives_of_arrays(seed: int) -> None:
    """Arrays, views and views of views come and go; every one keeps the pattern that was written when it was born."""
    rng = random.Random(seed)
    pool = MemoryPool(limit=24 * MB)
    alive: list[tuple[np.ndarray, int]] = []
    for step in range(600):
        act = rng.random()
        if act < 0.4 or not alive:
            size = rng.choice([SMALLEST // 2, SMALLEST, SMALLEST + 70_000, MB, MB + 5, 2 * MB, 3 * MB])
            a = pool.empty((size,), BYTES)
            a[:] = step % 251
            alive.append((a, step % 251))
        elif act < 0.6:
            a, pattern = rng.choice(alive)
            cut = rng.randrange(1 + len(a) // 2)
            alive.append((a[cut : cut + 1 + rng.randrange(len(a) - cut)].view(), pattern))
        elif act < 0.93:
            alive.pop(rng.randrange(len(alive)))
        elif act < 0.96:
            pool.clear()
        else:
            pool.limit = rng.choice([0, 4 * MB, 24 * MB])
        a, pattern = rng.choice(alive) if alive else (np.zeros(1, np.uint8), 0)
        assert (a == pattern).all()
        info = pool.info()
        assert 0 <= info["idle_bytes"] <= info["held_bytes"]
        assert info["idle_bytes"] == 0 or info["held_bytes"] <= info["limit_bytes"]
        assert step % 50 or all((a == pattern).all() for a, pattern in alive)
    alive.clear()
    del a
    assert idle(pool) == held(pool)


# ---- how much ------------------------------------------------------------------------------------------------------


def test_no_more_is_held_than_the_limit() -> None:
    pool = MemoryPool(limit=10 * MB)
    kept = [pool.empty((4 * MB,), BYTES) for _ in range(5)]
    assert held(pool) == 8 * MB  # the third and the others are ordinary arrays
    assert [a.base is None for a in kept] == [False, False, True, True, True]
    for a in kept:
        a[:] = 1
    kept.clear()
    del a
    assert idle(pool) == held(pool) == 8 * MB
    other = pool.empty((6 * MB,), BYTES)  # idle blocks make room
    assert other.base is not None
    assert held(pool) == 10 * MB


def test_what_cannot_fit_at_all_drops_nothing() -> None:
    pool = MemoryPool(limit=10 * MB)
    a = pool.empty((4 * MB,), BYTES)
    del a
    assert idle(pool) == 4 * MB
    assert pool.empty((11 * MB,), BYTES).base is None
    assert idle(pool) == 4 * MB


def test_a_limit_of_zero_holds_nothing(pool: MemoryPool) -> None:
    a, b = pool.empty((4 * MB,), BYTES), pool.empty((MB,), BYTES)
    a[:] = 1
    del b
    pool.limit = 0
    assert held(pool) == 4 * MB  # that is lent
    assert (a == 1).all()
    assert pool.empty((4 * MB,), BYTES).base is None
    del a
    assert held(pool) == 0
    pool.limit = 64 * MB
    assert pool.empty((4 * MB,), BYTES).base is not None


def test_clear_gives_back_what_is_idle_and_nothing_else(pool: MemoryPool) -> None:
    a, b = pool.empty((4 * MB,), BYTES), pool.empty((4 * MB,), BYTES)
    a[:] = 1
    del b
    pool.clear()
    assert (held(pool), idle(pool)) == (4 * MB, 0)
    assert (a == 1).all()


@pytest.fixture
def restored() -> Iterator[None]:
    limit = memory.pool.limit
    yield
    bs.set_memory_limit(limit)


@pytest.mark.usefixtures("restored")
def test_the_public_functions() -> None:
    x = np.linspace(-1, 1, MB, dtype=np.float32)
    bs.relu_grad(x, x)  # a first call asks for memory twice
    bs.empty_cache()
    before = bs.info()["memory"]["held_bytes"]
    dx = bs.relu_grad(x, x)
    del dx
    assert bs.info()["memory"]["idle_bytes"] == 4 * MB
    bs.empty_cache()
    assert bs.info()["memory"] == {
        "held_bytes": before, "idle_bytes": 0, "limit_bytes": bs.info()["memory"]["limit_bytes"],
    }  # fmt: skip
    bs.set_memory_limit(0)
    np.testing.assert_array_equal(bs.relu_grad(x, x), np.maximum(x, 0))
    assert bs.info()["memory"]["held_bytes"] == before
    for wrong in (1.0, "1", None, True):
        with pytest.raises(TypeError, match="size is a"):
            bs.set_memory_limit(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size is -1; expected 0 or more"):
        bs.set_memory_limit(-1)


@pytest.mark.parametrize("text", ["-1", "much", "1.5", "1e9"])
def test_wrong_limits_in_the_environment_are_refused(text: str) -> None:
    done = try_python("import backstroke as bs; bs.info()", BACKSTROKE_POOL_BYTES=text)
    assert f"ValueError: BACKSTROKE_POOL_BYTES is '{text}'; expected a number of bytes" in done.stderr


def test_limits_in_the_environment() -> None:
    code = "import backstroke as bs; print(bs.info()['memory']['limit_bytes'])"
    assert python(code, BACKSTROKE_POOL_BYTES="12345").strip() == "12345"
    assert python(code, BACKSTROKE_POOL_BYTES="").strip() == str(memory.memory_size() // 4)


def test_memory_of_the_process_is_the_lesser_of_machine_and_group(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: dict[str, str] = {}

    def read_text(path: Path) -> str:
        if path.name not in texts:
            raise FileNotFoundError
        return texts[path.name]

    monkeypatch.setattr(Path, "read_text", read_text)
    whole = memory.memory_size()
    assert whole > 0
    for name in ("memory.max", "memory.limit_in_bytes"):
        for text, want in (("1000000\n", 1000000), ("max\n", whole), (str(2**63 - 4096), whole)):
            texts.clear()
            texts[name] = text
            assert memory.memory_size() == want


def test_no_memory_is_numpys_error_and_leaves_the_pool_as_it_was(pool: MemoryPool) -> None:
    pool.limit = 1 << 62
    with pytest.raises((MemoryError, ValueError)):
        pool.empty((1 << 60,), BYTES)
    assert held(pool) == 0
    a = pool.empty((MB,), BYTES)
    assert held(pool) == MB
    del a


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="resident memory is read from /proc")
def test_nothing_grows_after_warming_up() -> None:
    x = np.linspace(-1, 1, 2 * MB, dtype=np.float32)
    for _ in range(20):
        bs.relu_grad(x, x)
        bs.tanh_grad(x[: MB // 2], x[: MB // 2])
        bs.sigmoid_grad(x[:100], x[:100])
        bs.softmax_grad(x[:1000:2], x[:1000:2])
    blocks, before = held(memory.pool), _resident()
    for _ in range(300):
        bs.relu_grad(x, x)
        bs.tanh_grad(x[: MB // 2], x[: MB // 2])
        small = bs.sigmoid_grad(x[:100], x[:100])
        small = bs.softmax_grad(x[:1000:2], x[:1000:2])
    assert small.shape == (500,)
    assert held(memory.pool) == blocks
    assert _resident() - before < 2 * MB


def _resident() -> int:
    text = Path("/proc/self/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- threads, forks, signals ---------------------------------------------------------------------------------------


def test_eight_threads_share_a_pool(pool: MemoryPool) -> None:
    wrong: list[str] = []

    def work(me: int) -> None:
        rng, alive = random.Random(me), []
        for _ in range(400):
            a = pool.empty((rng.choice([SMALLEST, MB // 2, MB]),), BYTES)
            a[:] = me
            alive.append(a[rng.randrange(100) :])
            if len(alive) > 4 or rng.random() < 0.3:
                alive.pop(rng.randrange(len(alive)))
            if rng.random() < 0.02:
                pool.clear()
            if not all((a == me).all() for a in alive):
                wrong.append(f"thread {me} sees another's bytes")

    crew = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert not wrong
    assert held(pool) == idle(pool) <= 256 * MB


def test_an_array_may_die_in_another_thread(pool: MemoryPool) -> None:
    box = [pool.empty((MB,), BYTES)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert idle(pool) == MB


def test_a_finalizer_may_ask_for_memory_in_the_middle_of_the_pool(pool: MemoryPool) -> None:
    """The collector may run anywhere, also while the pool is at work."""

    busy: list[int] = []

    class Greedy:
        def __del__(self) -> None:
            if not busy:
                busy.append(1)
                pool.empty((MB,), BYTES)
                pool.clear()
                pool.info()
                busy.clear()

    class Idle(type(pool._idle)):  # type: ignore[misc]
        def items(self) -> Any:
            Greedy()
            return super().items()

        def pop(self, *arguments: Any) -> Any:
            Greedy()
            return super().pop(*arguments)

        def popitem(self, last: bool = True) -> Any:
            Greedy()
            return super().popitem(last)

    pool._idle = Idle()
    done: list[int] = []

    def work() -> None:
        for _ in range(20):
            a = pool.empty((MB,), BYTES)
            a[:] = 1
            del a
            pool.empty((2 * MB,), BYTES)
            pool.limit = 4 * MB
        done.append(1)

    thread = threading.Thread(target=work, daemon=True)  # it would wait for itself for ever
    thread.start()
    thread.join(20)
    assert done
    pool._idle = type(pool._idle).__base__()
    assert held(pool) >= 0


FORK = """
    import os, threading
    import numpy as np, backstroke as bs
    x = np.linspace(-1, 1, 1 << 20, dtype=np.float32)
    def forked(task):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if task() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@forks
def test_parent_and_child_do_not_write_into_each_others_arrays() -> None:
    code = """
    mine = bs.relu_grad(x, x)
    bs.tanh_grad(x, x)
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        mine[:] = 7                                   # an array from before the fork
        taken = bs.relu_grad(x, np.full_like(x, -1))  # a block that was idle at the fork: all zeros
        os.write(ready[1], b"x"); os.read(go[0], 1)
        os._exit(0 if (mine == 7).all() and (taken == 0).all() else 1)
    os.read(ready[0], 1)
    assert (mine == np.maximum(x, 0)).all()
    taken = bs.leaky_relu_grad(x, np.ones_like(x))
    mine[:] = 8
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (taken == x).all()
    """
    python(FORK + code, timeout=20)


@forks
def test_a_child_may_use_the_pool_whatever_its_parent_was_doing() -> None:
    code = """
    import time
    from backstroke import memory
    stop = []
    def work():
        while not stop:
            memory.pool.empty((1 << 20,), np.dtype(np.uint8)); memory.pool.info(); memory.pool.clear()
    crew = [threading.Thread(target=work) for _ in range(3)]
    for thread in crew: thread.start()
    def task():
        a = [memory.pool.empty((1 << 20,), np.dtype(np.uint8)) for _ in range(3)]
        memory.pool.clear()
        return memory.pool.info()["held_bytes"] > 0
    for _ in range(60): assert forked(task)
    stop.append(1)
    for thread in crew: thread.join()
    """
    python(FORK + code, timeout=20)
