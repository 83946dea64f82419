"""Targets: every kernel under each that runs here, names that are wrong, objects for machines that are elsewhere."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import python, try_python

from backstroke import memory, registry
from backstroke.jit import compile as compiler
from backstroke.jit import target
from backstroke.jit.types import bf16, f16, f32, f64

MACHINES = {"aarch64-unknown-linux-gnu": 183, "riscv64-unknown-linux-gnu": 243}
every_op = pytest.mark.parametrize("op", registry.OPS, ids=lambda op: op.name)
every_type = pytest.mark.parametrize("dtype", registry.FLOATS, ids=str)


@every_op
@every_type
@pytest.mark.parametrize("name", target.runnable())
def test_every_op_runs_under_every_target(op: Any, dtype: np.dtype, name: str) -> None:
    arguments, keywords = op.example(np.random.default_rng(2), op.small, dtype)
    want = registry.results(op.reference(*arguments, **keywords))
    unit = float(ml_dtypes.finfo(dtype).eps)
    with target.using(name):
        assert target.current().name == name
        got, again = (registry.results(op.function(*arguments, **keywords)) for _ in range(2))
    for one, other, exact in zip(got, again, want, strict=True):
        assert one.dtype == dtype
        largest = np.abs(exact).max()  # sums cancel: what is rounded is of their terms' size
        np.testing.assert_allclose(one.astype(np.float64), exact, rtol=8 * unit, atol=max(40, op.ulp * largest) * unit)
        np.testing.assert_array_equal(one, other)


def test_using_goes_back_whatever_happens() -> None:
    before = target.current()
    for name in target.runnable():
        with pytest.raises(KeyError), target.using(name):
            raise KeyError
        assert target.current() is before


@pytest.mark.parametrize("name", target.runnable())
def test_the_environment_names_the_target(name: str) -> None:
    code = """
        import numpy as np, backstroke as bs
        x = np.linspace(-1, 1, 9, dtype=np.float32)
        assert (bs.relu_grad(x, x) == np.maximum(x, 0)).all()
        print(bs.info()["target"])
    """
    assert python(code, BACKSTROKE_TARGET=name).strip() == name


def test_an_empty_name_is_the_host() -> None:
    code = "import backstroke as bs; print(bs.info()['target'])"
    assert python(code, BACKSTROKE_TARGET="").strip() == "host"


def test_an_unknown_name_is_refused() -> None:
    code = "import numpy as np, backstroke as bs; x = np.ones(3, np.float32); bs.relu_grad(x, x)"
    done = try_python(code, BACKSTROKE_TARGET="x86-64-v9")
    assert done.returncode == 1
    assert "ValueError: BACKSTROKE_TARGET is 'x86-64-v9'; expected one of host, x86-64-v2" in done.stderr


@pytest.fixture
def old_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with nothing beyond x86-64-v2."""
    old = replace(target.host(), triple="x86_64-unknown-linux-gnu", features=target._LEVELS["x86-64-v2"])
    monkeypatch.setattr(target, "host", lambda: old)
    target.named.cache_clear()
    yield
    target.named.cache_clear()


@pytest.mark.usefixtures("old_machine")
def test_a_target_that_this_machine_lacks_is_refused() -> None:
    assert target.runnable() == ("host", "x86-64-v2")
    assert target.named("x86-64-v2").vector_bytes == 16
    with pytest.raises(ValueError, match=r"'x86-64-v3', which this CPU cannot run: it lacks avx, avx2"):
        target.named("x86-64-v3")
    with pytest.raises(ValueError, match=r"it lacks .*avx512f"), target.using("x86-64-v4"):
        pass


def test_an_x86_target_is_refused_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = replace(target.host(), triple="aarch64-unknown-linux-gnu", features=frozenset())
    monkeypatch.setattr(target, "host", lambda: arm)
    target.named.cache_clear()
    assert target.runnable() == ("host",)
    with pytest.raises(ValueError, match=r"it lacks (an x86-64 CPU|cx16)"):
        target.named("x86-64-v2")
    monkeypatch.undo()
    target.named.cache_clear()


def test_targets_say_what_they_are() -> None:
    arm, risc = target.foreign("arm64-apple-darwin"), target.foreign("riscv64-unknown-linux-gnu")
    assert (arm.arch, arm.is_x86, arm.vector_bytes, arm.registers, arm.has_fma, arm.has_float16) == (
        "aarch64", False, 16, 32, True, True,
    )  # fmt: skip
    assert not risc.has_float16  # its base has no such instruction, and a call into a library is no answer
    assert [arm.lanes(t) for t in (f32, f64, f16, bf16)] == [4, 2, 4, 4]
    if "x86-64-v4" in target.runnable():
        v2, v3, v4 = (target.named(f"x86-64-v{level}") for level in (2, 3, 4))
        assert [t.vector_bytes for t in (v2, v3, v4)] == [16, 32, 64]
        assert [t.registers for t in (v2, v3, v4)] == [16, 16, 32]
        assert [t.has_fma for t in (v2, v3, v4)] == [False, True, True]
        assert len({t.key for t in (v2, v3, v4)}) == 3


@pytest.fixture(scope="module")
def recipes() -> list[tuple[Any, ...]]:
    """How each function of the package that is compiled was asked for: all ops and types, all their kernels."""
    seen: dict[Any, tuple[Any, ...]] = {}
    real = compiler.function

    def spy(build: Any, *params: Any, returns: Any = None, wrap: bool = False, **constants: Any) -> Any:
        seen[build, params, wrap, tuple(map(str, constants.values()))] = (build, params, returns, wrap, constants)
        return real(build, *params, returns=returns, wrap=wrap, **constants)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "function", spy)
        from backstroke.jit import launch, threads

        crew = threads.Pool()
        crew.entry()
        crew.threads = 2  # so that there is a worker
        for launcher in launch._launchers:
            launcher._table = None
        rng = np.random.default_rng(0)
        for large in (2**62, 0):  # the kernels for large arrays, too
            patch.setattr(memory, "large_output", lambda inputs, large=large: large)
            launch.forget_all()
            for op in registry.OPS:
                for dtype in op.dtypes:
                    arguments, keywords = op.example(rng, op.small, dtype)
                    op.function(*arguments, **keywords)
                    if op.family == "softmax":
                        arguments = op.sample(rng, (4, 80, 512), dtype)
                        op.function(*arguments)
                        op.function(*arguments, axis=1)
    launch.forget_all()
    return list(seen.values())


@pytest.mark.parametrize("triple", MACHINES)
def test_every_kernel_becomes_an_object_for_other_machines(triple: str, recipes: list[tuple[Any, ...]]) -> None:
    goal = target.foreign(triple)
    traced = {build.__name__ for build, *_ in recipes}
    assert {"elementwise", "along_rows", "across", "worker", "run_pieces", "launch"} <= traced
    assert len(recipes) > 70
    assert {True, False} == {c["stream"] for *_, c in recipes if "stream" in c}
    for build, params, returns, wrap, constants in recipes:
        text = compiler._trace("kernel", goal, build, params, returns, wrap, constants)
        with compiler._optimised(goal, text, wrap) as (machine, module):
            image = machine.emit_object(module)
        assert image[:6] == b"\x7fELF\x02\x01"
        kind, number = struct.unpack_from("<HH", image, 16)
        assert (kind, number) == (1, MACHINES[triple]), build


def test_objects_for_arm_need_nothing_of_a_library() -> None:
    """Vectors stay instructions there: no call to memset, fma or conversions of half floats."""
    from backstroke.activation import kernels
    from backstroke.jit.types import pointer, scalar

    goal = target.foreign("aarch64-unknown-linux-gnu")
    for type in (f32, f64, f16, bf16):
        params = [scalar(), *[pointer(type)] * 3, scalar(type.compute)]
        options: dict[str, Any] = {"formula": kernels.quick_gelu_grad, "type": type, "stream": False}
        text = compiler.emit_assembly(goal, kernels.elementwise, *params, **options)
        assert "fmla" in text
        assert not [line for line in text.splitlines() if line.split()[:1] == ["bl"]], type
    text = compiler.emit_assembly(goal, _sets_modes, wrap=False)
    assert text.count("FPCR") == 3


def _sets_modes(k: Any) -> None:
    k.default_float_environment()()
