"""From checked arrays to kernels."""
from __future__ import annotations
import functools, math
from dataclasses import dataclass
import numpy as np
from .. import arrays, memory
from ..geometry import Geometry
from ..jit import compile as compiler
from ..jit.target import current
from ..jit.threads import pool
from ..jit.types import Type, f32, f64, i64, pointer, scalar
from . import channel_kernels, packing, sweeps
from .channel_kernels import ChannelPlan
from .packing import Weights
from .sweeps import Sweep

_DTYPES = {f32: np.dtype(np.float32), f64: np.dtype(np.float64)}
STAGE_BYTES = 384 << 10
SUMS_BYTES = 256 << 10


def weights_of(w_shape, group, layout, transposed):
    """Strides of the weights seen by a sweep; transposed: the sweep's inputs are the weights' outputs."""
    if layout == "NCX":
        cout, cin, *kernel = w_shape
        taps = math.prod(kernel)
        o, i = cin * taps, taps
        go = cout // group * o
        return Weights(go, i, o, 1) if transposed else Weights(go, o, i, 1)
    *kernel, cin, cout = w_shape
    t = cin * cout
    go = cout // group
    return Weights(go, cout, 1, t) if transposed else Weights(go, 1, cout, t)


def choose(sweep, layout, images, groups, inputs, outputs, type, lanes):
    size = type.compute.bytes
    sizes, spread = sweep.output_size, sweep.spread
    nvec = -(-outputs // lanes)
    best=None
    cols = -(-sizes[2] // spread[2])
    rows = -(-sizes[1] // spread[1])
    for v in (1, 2, 3, 4):
        if v > nvec: continue
        limit = 28 // v
        blocks = -(-nvec // v)
        for tn, ty in ((1,1),(1,2),(1,3),(1,4),(2,1),(4,1),(2,2)):
            if tn > images or ty > rows: continue
            tx = min(cols, limit // (tn * ty))
            if tx == 0: continue
            if cols > tx and tn*ty>1: continue
            n = -(-cols // tx)
            width = -(-cols // n)
            acc = tn*ty*width*v
            fm = max(acc, tn*ty*width + v, 4 * v, 8) + 1.2
            cost = blocks * fm * n * (-(-images // tn)) * (-(-rows // ty)) * (1.02 if v==1 else 1)
            cost += blocks*v*0.0
            if best is None or cost < best[0]*0.995:
                best=(cost,v,(tn,ty,width))
    _, v, tile = best
    block = v * lanes
    staged = not sweep.inside or type is not type.compute
    # box
    x = sizes[2]; 
    z = spread[0]
    tn, ty, tx = tile
    unit_y = ty * spread[1]
    def staged_bytes(n, z, y, x):
        p = ChannelPlan(sweep, layout, images, groups, inputs, outputs, (n, z, y, x), tile, v, inputs, inputs, True, type)
        return n * p.staged_view.image * size
    ally = -(-sizes[1] // unit_y) * unit_y
    y = ally
    while y > unit_y and (staged_bytes(tn, z, y, x) > STAGE_BYTES or tn * z * y * x * block * size > SUMS_BYTES):
        y = -(-y // unit_y // 2) * unit_y
    n_y = -(-sizes[1] // y)
    y = -(-(-(-sizes[1] // n_y)) // unit_y) * unit_y
    unit_x = tx * spread[2]
    while x > unit_x and (staged_bytes(tn, z, y, x) > 2*STAGE_BYTES or tn * z * y * x * block * size > SUMS_BYTES):
        x = -(-x // unit_x // 2) * unit_x
    n = tn
    while n * 2 <= images and staged_bytes(n*2, z, y, x) <= STAGE_BYTES and y == ally and n*2*z*y*x*block*size <= SUMS_BYTES and images // (2*n) >= 4:
        n *= 2
    if not staged and (n > tn and images % n or sizes[1] % (unit_y) or images % tn or sizes[2] % x):
        staged = True
    depth = max(16, (128 << 10) // (max(1, max(map(sweeps.tap_count, sweep.phases))) * block * size))
    return ChannelPlan(sweep, layout, images, groups, inputs, outputs, (n, z, y, x), tile, v, depth, inputs, staged, type)


class Scratch:
    def __init__(self, size, type):
        self.slots = pool.threads
        self.flags = np.zeros(self.slots * 8 + 8, np.int64)
        self.stride = size
        self.memory = memory.pool.empty((self.slots * size + 64,), _DTYPES[type])
    @property
    def arguments(self):
        flags, place = arrays.address(self.flags), arrays.address(self.memory)
        return flags + -flags % 64, self.slots, place + -place % 64


def run_sweep(source, w, bias, target, sweep, group, layout, transposed):
    type = arrays.TYPES[target.dtype]
    sums = type.compute
    lanes = current().lanes(type)
    images = source.shape[0]
    cs, ct = (a.shape[1] if layout == "NCX" else a.shape[-1] for a in (source, target))
    plan = choose(sweep, layout, images, group, cs // group, ct // group, type, lanes)
    run_plan(plan, source, w, bias, target, transposed)
    return plan

def run_plan(plan, source, w, bias, target, transposed):
    type = plan.type; sums = type.compute; lanes = current().lanes(type); sweep = plan.sweep
    block, blocks = plan.block(lanes), plan.blocks(lanes)
    packed_size = plan.packed_block(lanes)
    packed = memory.pool.empty((plan.groups * blocks * packed_size + 16,), _DTYPES[sums])
    origins = plan.tap_origins(lanes)
    flat = [sweeps.tap_indices(p, sweep.kernel) for p in sweep.phases]
    taps = tuple((flat[n][t], o, s) for n, t, o, s in origins)
    pk = compiler.kernel(packing.pack, pointer(type), pointer(sums), weights=weights_of(w.shape, plan.groups, plan.layout, transposed),
        inputs=plan.inputs, outputs=plan.outputs, block=block, taps=taps, kernel=math.prod(sweep.kernel), size=packed_size)
    pool.run(pk, pk.pack(arrays.address(w), arrays.address(packed)), plan.groups * blocks)
    scratch = Scratch(-(-sum(plan.scratch(lanes)) // 16) * 16, sums)
    params = [pointer(type), pointer(sums), pointer(type), pointer(type), pointer(i64), scalar(), pointer(sums)]
    kn = compiler.kernel(channel_kernels.sweep_channels, *params, plan=plan, biased=bias is not None)
    pool.run(kn, kn.pack(arrays.address(source), arrays.address(packed), arrays.address(bias) if bias is not None else 0, arrays.address(target), *scratch.arguments), plan.pieces)

from . import weight_kernels
from .weight_kernels import WeightPlan


def choose_weights(geometry, layout, images, groups, inputs, outputs, type, lanes, biased):
    size = type.compute.bytes
    nvec = -(-outputs // lanes)
    a, b, c = geometry.kernel
    best = None
    for joined in (True, False):
        if joined and (a * b * c > 14 or a * b == 1): continue
        inline = a * b * c if joined else c
        for v in (1, 2, 3, 4):
            if v > nvec: continue
            for rows in range(1, 1 + min(28, inputs or 1)):
                n = inline * rows
                if n * v > 28 and not (rows == 1 and v == 1): continue
                blocks = -(-nvec // v)
                count = -(-inputs // rows)
                rest = inputs % rows
                def cyc(n): return max(n * v, n + v, 4 * v, 8) + 2
                cost = blocks * (a * b * c // inline) * ((inputs // rows) * cyc(n) + (cyc(inline * rest) if rest else 0))
                if best is None or cost < best[0] * 0.999:
                    best = (cost, joined, v, rows)
    _, joined, v, rows = best
    block = v * lanes
    z, y, x = geometry.output_size
    pixels = max(64, (24 << 10) // (block * size))
    bx = min(x, pixels)
    if bx < x: bx = -(-x // -(-x // bx))
    by = max(1, min(y, pixels // bx))
    by = -(-y // -(-y // by))
    nb = max(1, min(images, pixels // (bx * by))) if by == y and bx == x else 1
    while images % nb: nb -= 1
    staged_x = type is not type.compute or any(p != (0, 0) for p in geometry.pads)
    staged_dy = layout == "NCX" or type is not type.compute or outputs % block != 0
    blocks = groups * -(-outputs // block)
    depth = max(inputs, 1)
    def plan(depth, chunks):
        return WeightPlan(geometry, layout, images, groups, inputs, outputs, v, rows, joined, (nb, by, bx), depth, chunks, staged_x, staged_dy, biased, type)
    while depth > rows and (plan(depth,1).scratch(lanes)[1] * size > (256 << 10)):
        depth = -(-depth // 2 // rows) * rows
    want = 8
    while depth > max(rows, 32) and blocks * -(-inputs // depth) < want:
        depth = -(-depth // 2 // rows) * rows
    chunks = 1
    p = plan(depth, 1)
    total = blocks * p.input_blocks
    sums = blocks * p.sums(lanes) * size
    while chunks < p.box_count and total * chunks < want and sums * chunks * 2 <= (4 << 20):
        chunks *= 2
    return plan(depth, min(chunks, p.box_count))


def run_weights(dy, x, dw, db, geometry, group, layout, w_shape):
    type = arrays.TYPES[dy.dtype]; sums = type.compute; lanes = current().lanes(type)
    cx, cy = (t.shape[1] if layout == "NCX" else t.shape[-1] for t in (x, dy))
    plan = choose_weights(geometry, layout, x.shape[0], group, cx // group if dw is not None else 0, cy // group, type, lanes, db is not None)
    blocks = group * plan.output_blocks(lanes)
    partial = memory.pool.empty((plan.chunks * blocks * plan.sums(lanes) + 16,), _DTYPES[sums])
    scratch = Scratch(-(-(sum(plan.scratch(lanes)) + 16) // 16) * 16, sums)
    kn = compiler.kernel(weight_kernels.weight_gradient, pointer(type), pointer(type), pointer(sums), pointer(i64), scalar(), pointer(sums), plan=plan)
    pool.run(kn, kn.pack(arrays.address(dy), arrays.address(x), arrays.address(partial), *scratch.arguments), plan.pieces(lanes))
    un = compiler.kernel(packing.unpack, pointer(sums), pointer(type), pointer(type), weights=weights_of(w_shape, group, layout, False), inputs=plan.inputs,
        outputs=plan.outputs, block=plan.block(lanes), kernel=plan.taps, chunks=plan.chunks, chunk=blocks * plan.sums(lanes), biased=plan.biased, type=type)
    pool.run(un, un.pack(arrays.address(partial), 0 if dw is None else arrays.address(dw), 0 if db is None else arrays.address(db)), blocks)
    return plan
