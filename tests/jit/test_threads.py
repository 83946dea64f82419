"""The thread pool: one answer for any number of threads, many callers, forks, exits, and quiet when idle."""

from __future__ import annotations

import concurrent.futures
import functools
import importlib.util
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import same_bits
from helpers import python, run, try_python

import backstroke as bs
from backstroke import registry
from backstroke.jit import target, threads, waiting
from backstroke.jit.threads import Pool, _quota, pool
from backstroke.jit.types import f32, i64

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
x86 = pytest.mark.skipif(not target.host().is_x86, reason="these modes are those of x86")
workers_needed = pytest.mark.skipif(waiting.calls() is None, reason="one thread computes here")


@pytest.fixture(autouse=True)
def same_number_of_threads() -> Iterator[None]:
    before = bs.get_num_threads()
    yield
    bs.set_num_threads(before)


# ---- the same bits -------------------------------------------------------------------------------------------------


ALIKE = [op for op in registry.OPS if op.family in ("activation", "softmax")]


@pytest.mark.parametrize("op", registry.OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", registry.FLOATS, ids=str)
@pytest.mark.parametrize("size", ["small", "large"])
def test_every_op_has_the_same_bits_for_any_number_of_threads(op: Any, dtype: np.dtype, size: str) -> None:
    arguments, keywords = op.example(np.random.default_rng(5), getattr(op, size), dtype)
    bs.set_num_threads(1)
    want = registry.results(op.function(*arguments, **keywords))
    for count in (2, 3, 7, 2):
        bs.set_num_threads(count)
        got = registry.results(op.function(*arguments, **keywords))
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("op", ALIKE, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", registry.FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(70_001,), (3, 9, 11_117), (400, 777)], ids=str)
def test_the_bits_are_the_same_for_any_number_of_threads(op: Any, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    arguments = op.sample(np.random.default_rng(4), shape, dtype)
    axes: list[dict[str, int]] = [{"axis": axis} for axis in range(len(shape))] if op.family == "softmax" else [{}]
    for options in axes:
        results = []
        for count in (1, 2, 3, 7, 2):
            bs.set_num_threads(count)
            results.append(op.function(*arguments, **options))
        assert all(same_bits(results[0], other) for other in results[1:])


def mark(k: Any, piece: Any, y: Any) -> None:
    y[piece] = y[piece] + 1


@pytest.mark.parametrize("count", [1, 2, 5, 70])
def test_every_piece_is_done_once(count: int) -> None:
    bs.set_num_threads(count)
    for pieces in [*range(20), 63, 64, 65, 1000, 16_384, 16_385, 100_003, 5_000_000]:
        y = np.zeros(pieces + 8, np.int8)
        run(mark, y, pieces=pieces)
        assert (y[:pieces] == 1).all()
        assert not y[pieces:].any()


def busy(k: Any, piece: Any, x: Any) -> None:
    for i in k.range(1000):
        x[piece * 1000 + i] = x[piece * 1000 + i] * 2 + 1


def meet(k: Any, piece: Any, arrived: Any, met: Any) -> None:
    k.atomic_add(arrived, 1)
    turns = k.var(0, i64)
    with k.forever() as leave:
        leave((k.atomic_load(arrived) >= 2) | (turns == 200_000_000))
        waiting.pause(k)
        turns += 1
    met[piece] = k.to(i64, k.atomic_load(arrived) >= 2)


@workers_needed
def test_workers_do_take_part() -> None:
    """Two pieces, either of which waits until the other has begun: no one thread can do them."""
    bs.set_num_threads(2)
    for _ in range(20):
        arrived, met = np.zeros(1, np.int64), np.zeros(2, np.int64)
        run(meet, arrived, met, pieces=2)
        assert met.all()


# ---- many callers --------------------------------------------------------------------------------------------------


def hammer(seconds: float, callers: int, *, meanwhile: Any = lambda: None) -> int:
    """`callers` Python threads that compute all sorts of things and compare -> how often they did, together."""
    rng = np.random.default_rng(8)
    jobs = []
    for op, size in itertools.product(registry.OPS, (5, 1000, 20_000, 300_000)):
        problem = registry.Example((size // 100 or 1, min(size, 100))) if op in ALIKE else op.small
        arguments, keywords = op.example(rng, problem, rng.choice(np.array([np.float32, np.float16, np.float64])))
        call = functools.partial(op.function, *arguments, **keywords)
        jobs.append((op.name, call, registry.results(call())))
    end, done, wrong = time.monotonic() + seconds, [0] * callers, []

    def work(me: int) -> None:
        order = np.random.default_rng(me).permutation(len(jobs))
        for number in itertools.cycle(order):
            if time.monotonic() > end or wrong:
                return
            name, call, want = jobs[number]
            try:
                if not all(map(same_bits, registry.results(call()), want)):
                    wrong.append(name)
            except Exception as error:
                wrong.append(repr(error))
            done[me] += 1

    crew = [threading.Thread(target=work, args=(i,)) for i in range(callers)]
    for thread in crew:
        thread.start()
    while any(thread.is_alive() for thread in crew):
        meanwhile()
        time.sleep(0.001)
    assert not wrong
    return sum(done)


@pytest.mark.parametrize("count", [2, 5])
def test_eight_callers_at_once(count: int) -> None:
    bs.set_num_threads(count)
    assert hammer(2.0, 8) > 0


def test_more_callers_than_slots() -> None:
    bs.set_num_threads(3)
    assert hammer(1.0, 2 * threads._SLOT_COUNT) > 0


def test_the_number_of_threads_may_change_during_work() -> None:
    numbers = itertools.cycle([1, 4, 2, 7, 3, 1, 6])
    assert hammer(2.0, 4, meanwhile=lambda: bs.set_num_threads(next(numbers))) > 0


def test_a_first_use_by_many_callers_at_once() -> None:
    code = """
        import threading
        import numpy as np, backstroke as bs
        gate, wrong = threading.Barrier(8), []
        x = np.linspace(-1, 1, 200_000, dtype=np.float32)
        def work():
            gate.wait()
            for _ in range(20):
                if not (bs.relu_grad(x, x) == np.maximum(x, 0)).all():
                    wrong.append(1)
        crew = [threading.Thread(target=work) for _ in range(8)]
        for thread in crew: thread.start()
        for thread in crew: thread.join()
        print(len(wrong))
    """
    for _ in range(3):
        assert python(code, BACKSTROKE_NUM_THREADS="4").strip() == "0"


# ---- idleness ------------------------------------------------------------------------------------------------------


@workers_needed
def test_idle_workers_use_no_cpu() -> None:
    bs.set_num_threads(4)
    run(busy, np.zeros(64_000, np.float32), pieces=64)
    time.sleep(0.05)  # the spinning is over by then
    start = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - start < 0.01


# ---- forks, other processes, exits ---------------------------------------------------------------------------------

FORK = """
    import os, sys, threading, time
    import numpy as np, backstroke as bs
    x = np.linspace(-1, 1, 500_000, dtype=np.float32)
    want = np.maximum(x, 0)

    def right():
        small = x[::500].copy()
        return all([
            (bs.relu_grad(x, x) == want).all(),
            (bs.relu_grad(small, small) == np.maximum(small, 0)).all(),
            (bs.softmax_grad(x.reshape(500, -1), np.ones((500, 1000), np.float32)).shape == (500, 1000)),
        ])

    def forked(task):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if task() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


@forks
@pytest.mark.parametrize("count", ["1", "4"])
def test_a_child_computes(count: str) -> None:
    code = """
    assert right()
    assert forked(right)
    assert right()
    assert forked(lambda: right() and forked(lambda: right() and forked(right)) and right())
    assert right()
    """
    python(FORK + code, BACKSTROKE_NUM_THREADS=count)


@forks
def test_a_child_that_was_forked_before_the_first_use_computes() -> None:
    python(FORK + "\n    assert forked(right) and right()", BACKSTROKE_NUM_THREADS="3")


@forks
def test_a_child_changes_its_number_of_threads() -> None:
    code = """
    assert right()
    def task():
        assert bs.get_num_threads() == 3
        for n in (5, 1, 2):
            bs.set_num_threads(n)
            if not right(): return False
        return True
    assert forked(task) and bs.get_num_threads() == 3 and right()
    """
    python(FORK + code, BACKSTROKE_NUM_THREADS="3")


@forks
def test_forks_while_other_threads_compute_and_compile() -> None:
    code = """
    stop, wrong = [], []
    def work(number):
        from backstroke.jit import compile as compiler, launch
        while not stop:
            if number == 0:
                compiler._compiled.clear(); launch.forget_all()
            if not right(): wrong.append(number)
    crew = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in crew: thread.start()
    end = time.monotonic() + 3
    forks = 0
    while time.monotonic() < end:
        assert forked(right)
        forks += 1
    stop.append(1)
    for thread in crew: thread.join()
    assert not wrong and forks > 5, (wrong, forks)
    """
    python(FORK + code, BACKSTROKE_NUM_THREADS="3")


@forks
def test_forks_while_other_threads_are_in_llvm() -> None:
    """Not to compile with us, whose lock a fork waits for: to ask for the CPU, say, or to compile with Numba."""
    code = """
    import llvmlite.binding as llvm
    stop = []
    def ask():
        while not stop: llvm.get_host_cpu_features()
    def task():
        from backstroke.jit import compile as compiler, launch
        compiler._compiled.clear(); launch.forget_all()
        return right()
    crew = [threading.Thread(target=ask) for _ in range(3)]
    for thread in crew: thread.start()
    for _ in range(20): assert forked(task)
    stop.append(1)
    """
    python(FORK + code, BACKSTROKE_NUM_THREADS="3", timeout=30)


def gradient_of(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    dy, x = rng.standard_normal((2, 100_000)).astype(np.float32)
    return bs.relu_grad(dy, x).tobytes()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_process_pools(method: str) -> None:
    here = [gradient_of(seed) for seed in range(4)]
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as others:
        assert list(others.map(gradient_of, range(4))) == here


EXIT = """
    import sys, threading, time
    import numpy as np, backstroke as bs
    x, small = np.ones(400_000, np.float32), np.ones(50, np.float32)
    def work():
        while True:
            bs.relu_grad(x, x); bs.softmax_grad(small, small); bs.tanh_grad(x, x)
    bs.relu_grad(x, x)
    for _ in range(3): threading.Thread(target=work, daemon=True).start()
    time.sleep({seconds})
"""


def test_the_interpreter_ends_while_daemon_threads_compute() -> None:
    def attempt(number: int) -> None:
        python(EXIT.format(seconds=0.002 * number), BACKSTROKE_NUM_THREADS="3")

    with concurrent.futures.ThreadPoolExecutor(2) as both:
        list(both.map(attempt, range(16)))


@pytest.mark.parametrize("ending", ["sys.exit(3)", "os._exit(3)", "raise SystemExit(3)"])
def test_exit_codes_are_the_callers(ending: str) -> None:
    code = (
        f"import os, sys, numpy as np, backstroke as bs; x = np.ones(10**6, np.float32); bs.relu_grad(x, x); {ending}"
    )
    assert try_python(code, BACKSTROKE_NUM_THREADS="4").returncode == 3


def test_an_interrupt_comes_through() -> None:
    code = """
        import os, signal, threading, time
        import numpy as np, backstroke as bs
        x = np.ones(3_000_000, np.float32)
        bs.relu_grad(x, x)
        for _ in range(5):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                while True: bs.relu_grad(x, x)
            except KeyboardInterrupt: pass
            assert (bs.relu_grad(x, x) == 1).all()
        print("alive")
    """
    assert python(code, BACKSTROKE_NUM_THREADS="2").strip() == "alive"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_signal_handler_may_compute() -> None:
    """Also in the middle of a call, whose locks are held."""
    code = """
        import signal, time
        import numpy as np, backstroke as bs
        x = np.linspace(-1, 1, 100_000, dtype=np.float32)
        want, calls, inside = np.maximum(x, 0), [], []
        bs.relu_grad(x, x)
        def handler(*_):
            if inside: return
            inside.append(1)
            assert (bs.relu_grad(x, x) == want).all()
            bs.set_num_threads(1 + len(calls) % 3); bs.info(); bs.empty_cache()
            calls.append(inside.pop())
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            kept = [bs.relu_grad(x, x) for _ in range(5)]
            assert all((a == want).all() for a in kept)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(len(calls) > 20)
    """
    assert python(code, BACKSTROKE_NUM_THREADS="2", timeout=20).strip() == "True"


# ---- how many ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "257", "1e3", "0x2"])
def test_wrong_numbers_in_the_environment_are_refused(text: str) -> None:
    done = try_python("import backstroke as bs; bs.get_num_threads()", BACKSTROKE_NUM_THREADS=text)
    assert f"ValueError: BACKSTROKE_NUM_THREADS is '{text}'; expected a whole number from 1 to 256" in done.stderr


@pytest.mark.parametrize("text", ["1", " 3 ", "256"])
def test_numbers_in_the_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTROKE_NUM_THREADS", text)
    assert Pool().threads == (int(text) if waiting.calls() else 1)


def test_without_a_number_it_is_what_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (None, "", "  "):
        if text is None:
            monkeypatch.delenv("BACKSTROKE_NUM_THREADS", raising=False)
        else:
            monkeypatch.setenv("BACKSTROKE_NUM_THREADS", text)
        assert Pool().threads == (threads.available() if waiting.calls() else 1)


@pytest.mark.parametrize("wrong", [0, -1, 257, 10**9])
def test_numbers_out_of_range_are_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"n is {wrong}; expected 1 to 256"):
        bs.set_num_threads(wrong)


@pytest.mark.parametrize("wrong", [1.0, "2", None, True])
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="n is a"):
        bs.set_num_threads(wrong)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_the_affinity_counts() -> None:
    code = """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import numpy as np, backstroke as bs
        x = np.ones(10**6, np.float32)
        assert (bs.relu_grad(x, x) == 1).all()
        bs.set_num_threads(3)
        assert (bs.relu_grad(x, x) == 1).all()
        bs.set_num_threads(1)
        from backstroke.jit.threads import available
        print(available())
    """
    assert python(code).strip() == "1"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("group", "files", "want"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "1000 100000"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "800000 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "900000 100000"}, 4),
        ("0::/\n", {"cpu.max": "500000 100000"}, 5),
        ("0::/not/there\n", {"cpu.max": "500000 100000"}, 5),
        ("0::/a\n", {}, None),
        ("0::/a\n", {"a/cpu.max": "rubbish"}, None),
        ("0::/a\n", {"a/cpu.max": ""}, None),
        ("0::/a\n", {"a/cpu.max": "100 0"}, None),
        (
            "5:memory:/x\n4:cpu,cpuacct:/a\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            3,
        ),
        ("4:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None),
        ("4:cpu:/docker/1\n", {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("4:memory:/a\n", {"memory/a/cpu.cfs_quota_us": "1", "memory/a/cpu.cfs_period_us": "1"}, None),
        ("4:cpu:/a\n0::/a\n", {"cpu/a/cpu.cfs_quota_us": "9", "cpu/a/cpu.cfs_period_us": "1", "a/cpu.max": "4 1"}, 4),
        ("", {}, None),
        ("nonsense\n\n0::/a\n", {"a/cpu.max": "2 1"}, 2),
    ],
)
def test_quotas_of_control_groups(tmp_path: Path, group: str, files: dict[str, str], want: int | None) -> None:
    membership = tmp_path / "membership"
    membership.write_text(group)
    assert _quota(membership, tree(tmp_path / "root", files)) == want


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert _quota(tmp_path / "not there", tmp_path) is None


def test_a_quota_bounds_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_quota", lambda *_: 1)
    assert threads.available() == 1
    monkeypatch.setattr(threads, "_quota", lambda *_: 10**6)
    assert threads.available() <= (os.cpu_count() or 1)


# ---- where things are missing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["x86_64", "somebody's"])
def test_where_nothing_fits_one_thread_computes_and_info_says_so(machine: str) -> None:
    code = f"""
        import platform
        import numpy as np, backstroke as bs
        from backstroke.jit import waiting
        waiting.calls = lambda: None
        if {machine!r} != "x86_64": waiting._FUTEX.clear()  # as on a machine that is not in that table
        x = np.linspace(-1, 1, 300_000, dtype=np.float32)
        for n in (1, 4):
            bs.set_num_threads(n)
            assert (bs.relu_grad(x, x) == np.maximum(x, 0)).all()
            assert bs.get_num_threads() == 1
        import threading
        assert threading.active_count() == 1 and len(__import__("os").listdir("/proc/self/task")) == 1
        print(bs.info()["threads"], bs.info()["why_one_thread"])
    """
    # Its own cache: what is traced differs, and the sources do not tell.
    assert (
        python(code, BACKSTROKE_CACHE_DIR="", OPENBLAS_NUM_THREADS="1")
        .strip()
        .startswith("1 no way of sleeping on memory is known")
    )


def test_the_calls_that_this_platform_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bs.info()["why_one_thread"] == ("" if waiting.calls() else pool.why_one)
    monkeypatch.setattr(sys, "platform", "plan9")
    waiting.calls.cache_clear()
    try:
        assert waiting.calls() is None
        assert waiting.allowed_cpus() == []
        assert pool.threads == 1
        assert "no way of sleeping" in pool.why_one
    finally:
        waiting.calls.cache_clear()


@workers_needed
def test_a_system_that_gives_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it gave do the work."""
    real, started = threads._thread.start_new_thread, []

    def start(function: Any, arguments: tuple[int, ...]) -> int:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(arguments[1])
        return real(function, arguments)

    monkeypatch.setattr(threads._thread, "start_new_thread", start)
    monkeypatch.setattr(pool, "_threads", 6)
    few = Pool()
    few._threads = 6
    from backstroke.jit import compile as compiler
    from backstroke.jit.types import pointer

    kernel = compiler.kernel(busy, pointer(f32))
    x = np.zeros(64_000, np.float32)
    for _ in range(2):
        few.run(kernel, kernel.pack(x.__array_interface__["data"][0]), 64)
    assert (x == 3).all()
    assert started == [0, 1]
    monkeypatch.undo()
    few.threads = 4
    assert few._workers == 3
    few.run(kernel, kernel.pack(x.__array_interface__["data"][0]), 64)
    assert (x == 7).all()


def test_workers_do_not_pile_up() -> None:
    code = """
        import os
        import numpy as np, backstroke as bs
        x = np.ones(10**6, np.float32)
        for n in (1, 8, 2, 8, 1, 4):
            bs.set_num_threads(n)
            bs.relu_grad(x, x)
        print(len(os.listdir("/proc/self/task")))
    """
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted in /proc")
    assert python(code, OPENBLAS_NUM_THREADS="1").strip() == "8"


# ---- the state of the floating-point unit --------------------------------------------------------------------------

MODES = """
    import numpy as np, backstroke as bs
    from helpers import run
    from backstroke.jit import trace
    import llvmlite.ir as ir
    from backstroke.jit.types import i32

    def exchange(k, piece, old, new):  # kernels run under modes of their own, so the caller's are set without the pool
        k.intrinsic("x86.sse.stmxcsr", ir.VoidType(), [old.ir])
        k.intrinsic("x86.sse.ldmxcsr", ir.VoidType(), [new.ir])

    import ctypes
    from backstroke.jit import compile as compiler
    from backstroke.jit.types import pointer
    swap = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
        compiler.kernel(exchange, pointer(i32), pointer(i32)).address)
    def modes(new):
        old, new = np.zeros(1, np.int32), np.array([new], np.int32)
        block = np.array([old.ctypes.data, new.ctypes.data])
        swap(block.ctypes.data, 0)
        return int(old[0])
"""


def _here() -> str:
    """A search path with the tests' own modules on it."""
    return os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])


@x86
@pytest.mark.parametrize("mode", [0x8040, 0x6000, 0x2000, 0x1F80 | 0x8040 | 0x4000])
@pytest.mark.parametrize("count", ["1", "3"])
def test_the_callers_modes_change_nothing_and_come_back(mode: int, count: str) -> None:
    """Flush to zero, denormals are zero, roundings: results have the same bits, and the caller keeps its modes."""
    code = f"""
    rng = np.random.default_rng(1)
    for n in (1, 100, 16384, 16385, 200_001):
        dy = (rng.standard_normal(n) * 1e-39).astype(np.float32)
        y = rng.uniform(0, 1, n).astype(np.float32)
        ops = (bs.sigmoid_grad, bs.leaky_relu_grad, bs.quick_gelu_grad, bs.softmax_grad, bs.log_softmax_grad)
        halves = dy.astype(np.float16), y.astype(np.float16)
        want = [op(dy, y).tobytes() for op in ops] + [op(*halves).tobytes() for op in ops]
        def again():
            return [op(dy, y).tobytes() for op in ops] + [op(*halves).tobytes() for op in ops]
        modes({mode | 0x1F80})
        got = again()
        got_strided = bs.sigmoid_grad(np.repeat(dy, 2)[::2], y).tobytes()
        left = modes(0x1F80)
        assert got == want and got_strided == want[0]
        assert left & 0xFFC0 == {mode | 0x1F80}, hex(left)
    print("right")
    """
    assert python(MODES + code, PYTHONPATH=_here(), BACKSTROKE_NUM_THREADS=count).strip() == "right"


@x86
def test_workers_have_modes_of_their_own() -> None:
    """A thread starts with the modes of the one that starts it."""
    code = """
    bs.set_num_threads(4)
    dy, y = np.full(3_000_000, 1e-40, np.float32), np.zeros(3_000_000, np.float32)
    modes(0x1F80 | 0x8040)
    got = [bs.leaky_relu_grad(dy, y, alpha=0.5) for _ in range(20)]
    modes(0x1F80)
    assert all((dx == dy * np.float32(0.5)).all() for dx in got) and (dy > 0).all()
    print("right")
    """
    assert python(MODES + code, PYTHONPATH=_here()).strip() == "right"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_flush_denormal_of_torch_changes_nothing() -> None:
    code = """
        import numpy as np, torch, backstroke as bs
        bs.set_num_threads(2)
        for n in (7, 200_000):
            x, dy = np.ones(n, np.float32), np.full(n, 1e-40, np.float32)
            bs.relu_grad(dy, x)
            assert torch.set_flush_denormal(True)
            dx = bs.leaky_relu_grad(dy, -x, alpha=0.5)
            flushed = float(torch.tensor([1e-40]) * 1)
            torch.set_flush_denormal(False)
            assert flushed == 0 and (dx == dy * np.float32(0.5)).all() and (dx > 0).all()
        print("right")
    """
    assert python(code).strip() == "right"
