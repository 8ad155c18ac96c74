package bpf

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// has reports whether x is one of the numbers that n stands for.
func (n number) has(x uint64) bool {
	if w := uint32(x); w < n.half.ulo || w > n.half.uhi || int32(w) < n.half.lo || int32(w) > n.half.hi {
		return false
	}
	return x >= n.ulo && x <= n.uhi && int64(x) >= n.lo && int64(x) <= n.hi && (x^n.val)&^n.unk == 0
}

// randomNumber makes a number and some of those that it stands for.
func randomNumber(g *rand.Rand) (number, []uint64) {
	edges := []uint64{0, 1, 2, 7, 8, 255, 1 << 31, 1<<31 - 1, 1 << 32, 1<<32 - 1, 1 << 63, 1<<63 - 1, math.MaxUint64, math.MaxUint64 - 7}
	x := g.Uint64() >> g.IntN(64)
	if g.IntN(3) == 0 {
		x = edges[g.IntN(len(edges))]
	}
	n := constant(x)
	xs := []uint64{x}
	for range g.IntN(4) {
		y := x + g.Uint64()>>g.IntN(64)
		switch g.IntN(4) {
		case 0:
			y = x - g.Uint64()>>g.IntN(64)
		case 1:
			y = x ^ 1<<g.IntN(64)
		case 2:
			y = edges[g.IntN(len(edges))]
		}
		n, xs = n.join(constant(y)), append(xs, y)
	}
	if g.IntN(4) == 0 { // forget something
		switch g.IntN(4) {
		case 3:
			n.half = anyHalf
		case 0:
			n.val, n.unk = 0, math.MaxUint64
		case 1:
			n.ulo, n.uhi = 0, math.MaxUint64
		case 2:
			n.lo, n.hi = math.MinInt64, math.MaxInt64
		}
		n.tidy()
	}
	return n, xs
}

// TestNumbers: the knowledge about a result holds for the results of all possible
// operands.
func TestNumbers(t *testing.T) {
	g := rand.New(rand.NewPCG(3, 4))
	for range 200_000 {
		a, xs := randomNumber(g)
		b, ys := randomNumber(g)
		s := g.IntN(64)
		j, w := a.join(b), a.widen(b, []int64{-129, 0, 63, 64, 1 << 20, math.MaxInt32})
		for _, x := range xs {
			if !a.has(x) {
				t.Fatalf("%+v does not have %#x", a, x)
			}
			for _, c := range []struct {
				name string
				n    number
				x    uint64
			}{
				{"join", j, x}, {"widen", w, x}, {"as32", a.truncate32(), uint64(uint32(x))}, {"lower", lowerOf(a), x}, {"other upper half", lowerOf(a), x ^ 5<<40},
				{"extended 1", a.signExtend(1), uint64(int8(x))}, {"extended 2", a.signExtend(2), uint64(int16(x))}, {"extended 4", a.signExtend(4), uint64(int32(x))},
				{"negated", a.negate(), -x}, {"left", a.shift(s), x << s}, {"right", a.shift(-s), x >> s},
				{"signed right", a.shiftSigned(s), uint64(int64(x) >> s)},
			} {
				if !c.n.has(c.x) {
					t.Fatalf("%s of %+v, by %d, is %+v, without %#x of %#x", c.name, a, s, c.n, c.x, x)
				}
			}
			for _, y := range ys {
				for _, c := range []struct {
					name string
					n    number
					z    uint64
				}{
					{"plus", a.plus(b), x + y}, {"minus", a.minus(b), x - y}, {"times", a.times(b), x * y},
					{"and", a.and(b), x & y}, {"or", a.or(b), x | y}, {"xor", a.xor(b), x ^ y},
				} {
					if !c.n.has(c.z) {
						t.Fatalf("%s of %+v and %+v is %+v, without %#x of %#x and %#x", c.name, a, b, c.n, c.z, x, y)
					}
				}
			}
		}
		m := a
		if ok := m.meet(b); !ok && slices.ContainsFunc(xs, b.has) {
			t.Fatalf("%+v and %+v do not meet, in %#x", a, b, xs)
		} else if ok {
			for _, x := range xs {
				if b.has(x) && !m.has(x) {
					t.Fatalf("%+v and %+v meet in %+v, without %#x", a, b, m, x)
				}
			}
		}
		if w2 := w.widen(w, nil); w2 != w {
			t.Fatalf("%+v widened by itself is %+v", w, w2)
		}
	}
}

// TestNumbersExact has results that must not be less exact than this.
func TestNumbersExact(t *testing.T) {
	r := numberBetween
	stops := []int64{0, 63, 64, 65, 1 << 23}
	by4 := r(0, 63)
	by4.meet(numberOfBits(0, ^uint64(3)))
	refined := r(0, 10)
	refined.meet(r(5, 20))
	for _, tt := range []struct {
		name string
		got  number
		lo   int64
		hi   int64
	}{
		{"sum", r(1, 5).plus(r(10, 20)), 11, 25},
		{"sum with sign", numberBetweenSigned(-5, 5).plus(constant(1)), -4, 6},
		{"difference", r(10, 20).minus(r(1, 5)), 5, 19},
		{"product", r(2, 3).times(constant(8)), 16, 24},
		{"and", anyNumber.and(constant(7)), 0, 7},
		{"shift", r(0, 1<<32-1).shift(-28), 0, 15},
		{"lower half", numberBetweenSigned(-1, -1).truncate32(), 1<<32 - 1, 1<<32 - 1},
		{"byte", anyNumber.signExtend(1), -128, 127},
		{"lower half again", lowerOf(r(4, 9)).truncate32(), 4, 9},
		{"lower half with sign", lowerOf(numberBetweenSigned(-3, 9)).signExtend(4), -3, 9},
		{"lower half and more", lowerOf(r(4, 9)).plus(constant(1<<40 + 1)).truncate32(), 5, 10},
		{"lower half and less", lowerOf(r(4, 9)).minus(constant(1)).truncate32(), 3, 8},
		{"aligned", by4, 0, 60},
		{"aligned and more", by4.plus(constant(4)), 4, 64},
		{"meet", refined, 5, 10},
		{"widened", constant(0).widen(r(0, 1), stops), 0, 63},
		{"widened again", r(0, 63).widen(r(0, 66), stops), 0, 1 << 23},
		{"widened at last", r(0, 63).widen(r(0, 1<<24), stops), 0, math.MaxInt64},
		{"widened downwards", constant(3).widen(numberBetweenSigned(-1, 3), stops), math.MinInt64, 3},
	} {
		if tt.got.lo != tt.lo || tt.got.hi != tt.hi {
			t.Errorf("%s: %d to %d, want %d to %d", tt.name, tt.got.lo, tt.got.hi, tt.lo, tt.hi)
		}
	}
}

// TestCopiesOfParts: a copy of the low bytes of a number is the same number only if all
// of it is there; otherwise a comparison of one says nothing about the other.
func TestCopiesOfParts(t *testing.T) {
	for _, c := range []struct {
		name, src string
		jump      int // slot of the jump that is looked at
		want      jumpChoice
	}{
		{"32-bit copy of any number", "ldxdw r2, [r1+0]\nmov32 r3, r2\njlt r2, 9, out\njge r3, 9, out\nmov r0, 1\nexit\nout:\nmov r0, 0\nexit", 3, eitherWay},
		{"32-bit copy of a small number", "ldxw r2, [r1+0]\nmov32 r3, r2\njlt r2, 9, out\njge r3, 9, out\nmov r0, 1\nexit\nout:\nmov r0, 0\nexit", 3, alwaysTaken},
		{"half of any number", "ldxdw r2, [r1+0]\nstxdw [r10-8], r2\nldxw r3, [r10-8]\njlt r2, 9, out\njge r3, 9, out\nmov r0, 1\nexit\nout:\nmov r0, 0\nexit", 4, eitherWay},
		{"half of a small number", "ldxw r2, [r1+0]\nstxdw [r10-8], r2\nldxw r3, [r10-8]\njlt r2, 9, out\njge r3, 9, out\nmov r0, 1\nexit\nout:\nmov r0, 0\nexit", 4, alwaysTaken},
		{"a byte of any number", "ldxdw r2, [r1+0]\nstxb [r10-8], r2\nldxb r3, [r10-8]\njlt r2, 9, out\njge r3, 9, out\nmov r0, 1\nexit\nout:\nmov r0, 0\nexit", 4, eitherWay},
		{"the upper half", "ldxw r2, [r1+0]\nstxdw [r10-8], r2\nldxw r3, [r10-4]\njlt r2, 9, out\njge r3, 9, out\nmov r0, 1\nexit\nout:\nmov r0, 0\nexit", 4, neverTaken},
	} {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, c.src)})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if f := verify(p, false).facts[c.jump]; f.jump != c.want {
			t.Errorf("%s: the jump is %d, want %d", c.name, f.jump, c.want)
		}
	}
}
