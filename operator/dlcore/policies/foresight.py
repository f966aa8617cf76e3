"""Prototype."""

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Any
from weakref import WeakKeyDictionary

import numpy as np

from dlcore.checking import Law
from dlcore.contract import Decision, Share, View
from dlcore.model import Cause, CauseCode, JobState
from dlcore.policies.ordering import fewest_needed, keep
from dlcore.rooms import Room, acceptable_types, count_nodes

_NO_ROOM = Cause(CauseCode.NO_ROOM)


class Curve:
    def __init__(self, options, speeds, kind):
        self.kind = kind
        pts = [(0, 0.0)]
        best = 0.0
        self.options = []
        self.speeds = []
        for k, s in zip(options, speeds):
            if s > 0:
                self.options.append(k)
                self.speeds.append(s)
        self.by = dict(zip(self.options, self.speeds))
        # hull up to the peak
        hull = [(0, 0.0)]
        for k, s in zip(self.options, self.speeds):
            if s <= hull[-1][1]:
                continue
            while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (k - hull[-2][0]) <= (s - hull[-2][1]) * (hull[-1][0] - hull[-2][0]):
                hull.pop()
            hull.append((k, s))
        self.peak = hull[-1][0]
        self.top = hull[-1][1]
        inc = []
        for (a, x), (b, y) in zip(hull, hull[1:]):
            inc += [(y - x) / (b - a)] * (b - a)
        self.inc = inc
        h = 0.0
        self.h = [0.0]
        for d in inc:
            h += d
            self.h.append(h)
        # the options worth anything: not dominated by a smaller option
        self.useful = []
        m = 0.0
        for k, s in zip(self.options, self.speeds):
            if s > m:
                m = s
                self.useful.append((k, s))
        self.shapes = {}
        self.mid = math.sqrt(self.h[1] * self.top) if self.top > 0 else 1e-12


class Bid:
    __slots__ = ("state", "left", "curve", "held", "key", "price", "cost", "weight")


_curves: dict = {}


def curve_of(view, state):
    job = state.job
    key = (id(view.predictor.profiles), id(view.cluster), job.type, job.gpus.options)
    c = _curves.get(key)
    if c is None:
        kind = view.predictor.best_type(job, job.gpus.options[0])
        options = [k for k in job.gpus.options if k <= view.cluster.total]
        speeds = [view.predictor.speed(job, view.predictor.shape(k, kind)) for k in options]
        c = _curves[key] = Curve(options, speeds, kind)
        c.pin = (view.predictor.profiles, view.cluster)
    return c


@dataclass(frozen=True, slots=True)
class Foresight:
    name: ClassVar[str] = "foresight"
    paper: ClassVar[str] = "own"
    needs: ClassVar[str] = "speeds, iterations"
    breaks: ClassVar[frozenset[Law]] = frozenset()

    theta: float = 0.2
    horizon: float = 1000.0
    smooth: float = 30000.0
    age: float = 0.0
    swap: int = 1
    order: float = 0.5
    stopw: float = 0.5
    arrange: bool = True
    gaps: int = 8
    moves: bool = True
    fill: bool = True
    pack: bool = True

    def allocate(self, view: View) -> Decision:
        bids = self.collect(view)
        M = view.cluster.total
        then, u = view.state if view.state is not None else (view.now, 0.0)
        clearing = self.price(bids, M, self.theta * u)
        keepw = math.exp(-(view.now - then) / self.smooth) if view.state is not None else 1.0
        u = keepw * u + (1 - keepw) * clearing
        counts = self.choose(bids, M)
        if len(view.cluster.nodes) > len(view.cluster.types) and self.arrange:
            shares = Arranging(self, view, bids, counts).run()
        else:
            shares = self.plain(bids, counts)
        return Decision(shares, wait=_NO_ROOM, state=(view.now, u))

    def plain(self, bids, counts):
        shares = {}
        for b in bids:
            k = counts.get(b.state.id)
            if not k:
                continue
            if k == b.held:
                shares[b.state.id] = keep(k)
            else:
                shares[b.state.id] = Share(k, cause_of(b, k), b.curve.kind)
        return shares

    def collect(self, view):
        bids = []
        now = view.now
        p = view.predictor
        for state in (*view.running, *view.pending):
            b = Bid()
            b.state = state
            b.curve = curve_of(view, state)
            if not b.curve.useful:
                continue
            left = state.iterations_total - (state.iterations_done + state.speed * (now - state.observed_at))
            if left == math.inf:
                left = p._suppose_left(state, state.iterations_at(now))
            b.left = max(left, 1e-6)
            b.held = state.placement.shape.gpus if state.placement else 0
            if b.held and state.speed > 0 and not state.adjusting:
                here = p.speed(state.job, state.placement.shape)
                if here > 0 and abs(here / state.speed - 1) > 1e-9:
                    b.left *= here / state.speed
            costs = p.costs_of(state.job)
            b.cost = costs.process_restart(1)
            b.weight = 1.0
            if self.age > 0:
                age = now - state.job.submitted_at + b.left / b.curve.top
                b.weight = age ** self.age
            bids.append(b)
        if self.age > 0 and bids:
            mean = sum(b.weight for b in bids) / len(bids)
            for b in bids:
                b.weight /= mean
        return bids

    def price(self, bids, M, floor):
        o = self.order
        for b in bids:
            c = b.curve
            b.key = b.left / (c.h[1] ** (1 - o) * c.top ** o) / b.weight
        line = sorted(bids, key=lambda b: (b.key, b.state.order))
        slots = [floor] * M
        if self.swap and len(line) > 1:
            self.backward_swapping(line, slots)
        else:
            for b in reversed(line):
                p, k, taken = quote(slots, b, push=False)
                settle(slots, b, p, k, taken)
        return slots[0]

    def backward_swapping(self, line, slots):
        cur = line[-1]
        for nxt in reversed(line[:-1]):
            # cur last (placed now), nxt next; or nxt placed now, cur next
            # cheap evaluation of the two orders with copies of the small end
            a = two(slots, cur, nxt)
            b_ = two(slots, nxt, cur)
            if a <= b_:
                p, k, t = quote(slots, cur, push=False)
                settle(slots, cur, p, k, t)
                cur = nxt
            else:
                p, k, t = quote(slots, nxt, push=False)
                settle(slots, nxt, p, k, t)
        p, k, t = quote(slots, cur, push=False)
        settle(slots, cur, p, k, t)

    def choose(self, bids, M):
        R = self.horizon
        if len(bids) > 2 * M:
            run = [b for b in bids if b.held]
            wait = [b for b in bids if not b.held]
            wait = heapq.nsmallest(M, wait, key=lambda b: -b.price * b.curve.h[1])
            bids = run + wait
        items = []
        easy = 0
        for b in bids:
            opts = []
            c = b.cost
            best = (0.0, 0)
            fresh = b.held == 0
            for k, s in b.curve.useful:
                v = b.price * s
                if fresh:
                    if b.state.started_at is not None and c > 0:
                        v *= 1 - 0.5 * c / min(R, b.left / s + c)
                elif k != b.held and c > 0:
                    v *= 1 - c / min(R, b.left / s + c)
                if v > best[0]:
                    best = (v, k)
                opts.append((k, v))
            stop = 0.0
            if not fresh and c > 0:
                stop = -b.price * b.curve.by.get(b.held, 0.0) * self.stopw * c / R
            if not fresh and b.held in b.curve.by and b.held > b.curve.peak:
                opts.append((b.held, b.price * b.curve.by[b.held]))
            easy += best[1]
            items.append((b, opts, stop, best[1]))
        if easy <= M:
            return {b.state.id: k for b, _, _, k in items}
        return knapsack(items, M)


def quote(slots, b, push=True):
    h = b.curve.h
    best = math.inf
    total = 0.0
    taken = []
    k = 0
    w = b.weight
    most = min(len(h) - 1, len(slots))
    for n in range(1, most + 1):
        s = heapq.heappop(slots)
        total += s
        taken.append(s)
        r = (w + total) / h[n]
        if r < best:
            best = r
            k = n
        else:
            break
    if push:
        for s in taken:
            heapq.heappush(slots, s)
    return best, k, taken


def settle(slots, b, p, k, taken):
    b.price = p
    for s in taken[k:]:
        heapq.heappush(slots, s)
    for d in b.curve.inc[:k]:
        heapq.heappush(slots, p * d)


def two(slots, first, then):
    """Cost of placing first (last to end), then then."""
    p, k, taken = quote(slots, first, push=False)
    for s in taken[k:]:
        heapq.heappush(slots, s)
    inc = [p * d for d in first.curve.inc[:k]]
    for d in inc:
        heapq.heappush(slots, d)
    q, _, t2 = quote(slots, then)
    # undo
    for d in inc:
        slots.remove(d)
    for s in taken[:k]:
        slots.append(s)
    heapq.heapify(slots)
    return p * first.left + q * then.left


def knapsack(items, M):
    rows = [np.zeros(M + 1)]
    cur = rows[0]
    for b, opts, stop, _ in items:
        new = cur + stop
        for k, v in opts:
            if k <= M:
                np.maximum(new[k:], cur[: M + 1 - k] + v, out=new[k:])
        rows.append(new)
        cur = new
    c = int(np.argmax(cur))
    counts = {}
    for (b, opts, stop, _), old, new in zip(reversed(items), reversed(rows[:-1]), reversed(rows[1:])):
        if new[c] == old[c] + stop:
            continue
        for k, v in opts:
            if k <= c and old[c - k] + v == new[c]:
                counts[b.state.id] = k
                c -= k
                break
    return counts


def cause_of(b, k, moves=False):
    if not b.held:
        return Cause(CauseCode.ITS_TURN)
    if k > b.held:
        return Cause(CauseCode.FASTER_WITH_MORE)
    if k == b.held:
        return Cause(CauseCode.PACKING)
    return Cause(CauseCode.MAKES_ROOM)


class Arranging:
    def __init__(self, policy, view, bids, counts):
        self.policy = policy
        self.view = view
        self.counts = counts
        self.bids = {b.state.id: b for b in bids}
        self.R = policy.horizon
        self.now_at = {}
        self.at = {}
        self.on = {}
        kept = []
        for b in bids:
            pl = b.state.placement
            if pl is not None:
                self.now_at[b.state.id] = count_nodes(pl)
                if counts.get(b.state.id):
                    kept.append(pl)
                    self.put(b, dict(self.now_at[b.state.id]))
        self.room = Room(view.cluster, kept)
        self.order = []
        self.moved = set()

    def put(self, b, nodes):
        for n in self.at.get(b.state.id, ()):
            self.on[n].pop(b.state.id, None)
        self.at[b.state.id] = nodes
        for n in nodes:
            self.on.setdefault(n, {})[b.state.id] = b

    def assign(self, b, nodes):
        old = self.at.get(b.state.id)
        if old:
            self.room.give(old)
        self.room.take(nodes)
        self.put(b, dict(nodes))
        i = b.state.id
        if i in self.order:
            self.order.remove(i)
        self.order.append(i)

    def speed(self, b, nodes):
        k = sum(nodes.values())
        n = len(nodes)
        c = b.curve
        key = (k, n)
        v = c.shapes.get(key)
        if v is None:
            from dlwire.messages import Shape
            v = c.shapes[key] = self.view.predictor.speed(b.state.job, Shape(k, n, c.kind))
        return v

    def value(self, b, nodes):
        """Price times speed, less what the change costs."""
        s = self.speed(b, nodes)
        v = b.price * s
        now = self.now_at.get(b.state.id)
        if now == nodes or s <= 0:
            return v
        c = b.cost
        if now is None:
            if b.state.started_at is None:
                return v
            c *= 0.5
        return v * (1 - c / min(self.R, b.left / s + c))

    def run(self):
        exact = self.shrink()
        wants = [b for b in self.bids.values() if self.counts.get(b.state.id, 0) > b.held]
        wants.sort(key=lambda b: (-self.counts[b.state.id], -b.price * b.curve.h[1], b.state.order))
        for b in wants:
            k = self.counts[b.state.id]
            if not self.place(b, k):
                exact = False
        if self.policy.pack:
            self.consolidate()
        if not exact and self.policy.fill:
            self.fill()
        return self.shares()

    def shrink(self):
        for i, nodes in list(self.at.items()):
            b = self.bids[i]
            k = self.counts[i]
            if k >= b.held:
                continue
            left = self.reduce(b, nodes, k)
            self.room.give(nodes)
            self.room.take(left)
            self.put(b, left)
        return True

    def reduce(self, b, nodes, k):
        whole = [n for n, c in nodes.items() if c >= k]
        if whole:
            n = min(whole, key=lambda n: (nodes[n] , n))
            return {n: k}
        out = {}
        for n in sorted(nodes, key=lambda n: (-nodes[n], n)):
            t = min(nodes[n], k)
            if t:
                out[n] = t
                k -= t
        return out

    def fewest(self, k, kind):
        return self.view.predictor.shape(k, kind).nodes

    def place(self, b, k):
        """Give it k GPUs or what is best besides; whether it got k on the fewest nodes."""
        fit = self.fit(b, k)
        if fit is not None and len(fit) <= self.fewest(k, b.curve.kind):
            self.assign(b, fit)
            return True
        best = (self.value(b, self.at[b.state.id]) if b.state.id in self.at else 0.0, None, ())
        if fit is not None:
            v = self.value(b, fit)
            if v > best[0]:
                best = (v, fit, ())
        gap = self.make_gap(b, k) if self.policy.moves else None
        if gap is not None:
            node, moves, cost = gap
            v = self.value(b, {node: k}) - cost
            if v > best[0]:
                best = (v, {node: k}, moves)
        for j, s in b.curve.useful:
            if b.held < j < k:
                fit = self.fit(b, j)
                if fit is not None:
                    v = self.value(b, fit)
                    if v > best[0]:
                        best = (v, fit, ())
        _, nodes, moves = best
        if nodes is None:
            return False
        for other, where in moves:
            self.assign(other, where)
            self.moved.add(other.state.id)
        self.assign(b, nodes)
        return sum(nodes.values()) == k

    def fit(self, b, k):
        have = self.at.get(b.state.id, {})
        # in place
        missing = k - sum(have.values())
        if have and len(have) == 1:
            (n, c), = have.items()
            if self.room.nodes.get(n, 0) >= missing:
                return {n: k}
        kind = b.curve.kind
        node = self.room.find_node(b.state, kind, k)
        if node is not None:
            return {node: k}
        if have:
            self.room.give(have)
        try:
            nodes = self.room.spread(b.state, k, (kind,))
        finally:
            if have:
                self.room.take(have)
        if nodes is None or not have:
            return nodes
        # it cannot wait for itself: what it has may be part of it only if kept
        own = dict(have)
        more = self.room.spread(b.state, missing, (kind,), beside={}) if missing > 0 else {}
        for n in sorted(own, key=lambda n: -self.room.nodes.get(n, 0)):
            t = min(missing, self.room.nodes.get(n, 0))
            own[n] += t
            missing -= t
        if missing > 0:
            further = self.room.spread(b.state, missing, (kind,), beside=own)
            if further is None:
                return nodes
            own.update(further)
        return nodes if len(nodes) < len(own) else own

    def make_gap(self, b, k):
        kind = b.curve.kind
        size = self.view.cluster.largest_node[kind]
        if k > size:
            return None
        cands = []
        for n, f in self.room.nodes.items():
            if self.view.cluster.by_name[n].gpu_type != kind:
                continue
            if f <= 0 or f >= k and n not in self.at.get(b.state.id, {}):
                continue
            mine = self.at.get(b.state.id, {}).get(n, 0)
            cands.append((-(f + mine), n))
        cands.sort()
        best = None
        for _, n in cands[: self.policy.gaps]:
            mine = self.at.get(b.state.id, {}).get(n, 0)
            need = k - mine - self.room.nodes[n]
            got = self.evacuate(b, n, need)
            if got is not None and (best is None or got[1] < best[2]):
                best = (n, got[0], got[1])
        return best

    def evacuate(self, b, n, need):
        movable = []
        for o in self.on.get(n, {}).values():
            at = self.at[o.state.id]
            if o is b or len(at) > 1 or o.state.bound_to or sum(at.values()) < o.held:
                continue
            k = at[n]
            s = self.speed(o, at)
            now = self.now_at.get(o.state.id)
            cost = o.price * s * o.cost / min(self.R, o.left / s + o.cost) if now == at else 0.0
            movable.append((cost / k, k, o, cost))
        movable.sort(key=lambda m: (m[0], m[2].state.order))
        moves = []
        total = 0.0
        used = {}
        for _, k, o, cost in movable:
            if need <= 0:
                break
            dest = self.gap_for(o, k, n, used)
            if dest is None:
                continue
            used[dest] = used.get(dest, 0) + k
            moves.append((o, {dest: k}))
            total += cost
            need -= k
        return (moves, total) if need <= 0 else None

    def gap_for(self, o, k, but, used):
        best = None
        kind = o.curve.kind
        for c in range(k, self.view.cluster.largest_node[kind] + 1):
            for n in self.room._buckets[kind][c]:
                if n == but or c - used.get(n, 0) < k:
                    continue
                return n
        return best

    def consolidate(self):
        for i, nodes in list(self.at.items()):
            b = self.bids[i]
            k = sum(nodes.values())
            if len(nodes) <= self.fewest(k, b.curve.kind) or b.state.bound_to or b.state.adjusting or k < b.held:
                continue
            now = self.value(b, nodes)
            node = self.room.find_node(b.state, b.curve.kind, k)
            moves, cost = (), 0.0
            if node is None:
                gap = self.make_gap(b, k)
                if gap is None:
                    continue
                node, moves, cost = gap
            if self.value(b, {node: k}) - cost > now:
                for other, where in moves:
                    self.assign(other, where)
                self.assign(b, {node: k})

    def fill(self):
        while self.room.total > 0:
            best = None
            for n, f in self.room.nodes.items():
                if f <= 0:
                    continue
                for b in self.on.get(n, {}).values():
                    at = self.at[b.state.id]
                    if len(at) > 1:
                        continue
                    k = at[n]
                    v = self.value(b, at)
                    for j, s in b.curve.useful:
                        if k < j <= k + f:
                            g = (self.value(b, {n: j}) - v) / (j - k)
                            if g > 1e-12 and (best is None or g > best[0]):
                                best = (g, b, {n: j})
            for b in self.bids.values():
                if b.state.id in self.at or b.state.least > self.room.total:
                    continue
                for j, s in b.curve.useful:
                    node = self.room.find_node(b.state, b.curve.kind, j)
                    if node is None:
                        break
                    g = self.value(b, {node: j}) / j
                    if g > 1e-12 and (best is None or g > best[0]):
                        best = (g, b, {node: j})
            if best is None:
                return
            self.assign(best[1], best[2])

    def shares(self):
        shares = {}
        for i, nodes in self.at.items():
            b = self.bids[i]
            k = sum(nodes.values())
            if nodes == self.now_at.get(i):
                shares[i] = keep(k)
        for i, nodes in self.at.items():
            if i in shares or i in self.order:
                continue
            b = self.bids[i]
            k = sum(nodes.values())
            shares[i] = Share(k, cause_of(b, k), b.curve.kind, nodes)
        for i in self.order:
            if i in shares:
                continue
            b = self.bids[i]
            nodes = self.at[i]
            k = sum(nodes.values())
            shares[i] = Share(k, cause_of(b, k), b.curve.kind, nodes)
        return shares
