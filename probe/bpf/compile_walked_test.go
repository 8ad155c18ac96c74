//go:build linux && amd64

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// stackEnv has a kernel stack.
type stackEnv struct {
	NoEnv
	stack []uint64
}

func (e stackEnv) Stack(pcs []uint64, skip int, user bool) (int, error) {
	if user {
		return 0, errNoGuest
	}
	return copy(pcs, e.stack[min(skip, len(e.stack)):]), nil
}

// TestWalked: with a stack that was walked before, compiled programs return and keep what the interpreter does, for any length, depth and
// number of addresses to skip.
func TestWalked(t *testing.T) {
	n := newNative(t)
	walk, err := n.Alloc(8 + 8*382)
	if err != nil {
		t.Fatal(err)
	}
	words := func(stack ...uint64) {
		clear(walk.Bytes)
		for i, x := range append([]uint64{uint64(len(stack))}, stack...) {
			copy(walk.Bytes[8*i:], u64(x))
		}
	}
	const buffer = 400
	for _, skip := range []int{0, 1, 5, 255} {
		for _, depth := range []int{1, 2, 7, buffer / 8} {
			maps := func(m Memory) []*Map {
				return testMaps(t, m, MapSpec{Name: "s", Kind: StackTrace, KeySize: 4, ValueSize: uint32(8 * depth), MaxEntries: 64})
			}
			src := fmt.Sprintf(`mov r6, r1
mov r2, r10
add r2, %d
mov r3, %d
mov r4, %d
call 67
mov r7, r0
mov r1, r6
ldmap r2, 0
mov r3, %d
call 27
lsh r0, 32
add r0, r7
exit`, -buffer, 8*depth, skip|StackUnwind, skip|StackUnwind|StackNear)
			program := func(m []*Map) *Program {
				p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, src), Maps: m})
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			theirs, ours := maps(Heap{}), maps(n)
			v, p := NewVM(program(theirs), 0), program(ours)
			code, err := n.load(p, Layout{Walked: true, Full: true}, BlockConfig{Walk: walk.Addr}, RegsSize)
			if err != nil {
				t.Fatal(err)
			}
			if code.info.Walk != skip+depth || len(code.info.Fixups) != 0 {
				t.Errorf("skip %d, depth %d: %d addresses, %d fixups", skip, depth, code.info.Walk, len(code.info.Fixups))
			}
			for _, length := range []int{0, 1, 2, 5, 6, 8, 50, 128, 256, 300, 382} {
				stack := make([]uint64, length)
				for i := range stack {
					stack[i] = 0xffff_ffff_8100_0000 + uint64(i*length)
				}
				words(stack...)
				ctx := make([]byte, RegsSize)
				want, err := v.Run(ctx, stackEnv{stack: stack})
				if err != nil {
					t.Fatal(err)
				}
				got, err := code.run(ctx)
				if err != nil || got != want {
					t.Errorf("skip %d, depth %d, length %d: %#x, %v, want %#x", skip, depth, length, got, err, want)
				}
				from := StackSize - buffer
				if a, b := code.block.Bytes[blkStack+from:][:8*depth], v.stack[from:][:8*depth]; !bytes.Equal(a, b) {
					t.Errorf("skip %d, depth %d, length %d:\ngot  % x\nwant % x", skip, depth, length, a, b)
				}
			}
			if a, b := ours[0].area.Bytes, theirs[0].area.Bytes; !bytes.Equal(a[mapHeader:], b[mapHeader:]) {
				t.Errorf("skip %d, depth %d: the maps differ", skip, depth)
			}
			// A guest may put any number there.
			for _, n := range []uint64{383, 1<<31 - 1, 1 << 31, 1<<32 - 1, ^uint64(0)} {
				copy(walk.Bytes, u64(n))
				if got, err := code.run(make([]byte, RegsSize)); err != nil || int(uint32(got)) > 8*depth {
					t.Errorf("%d addresses: %#x, %v", n, got, err)
				}
			}
		}
	}
	for _, flags := range []int{stackUser, stackFast, stackReuse, StackNear} {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, fmt.Sprintf("mov r2, r10\nadd r2, -8\nmov r3, 8\nmov r4, %d\ncall 67\nexit", flags))})
		if err != nil {
			t.Fatal(err)
		}
		var host *HostOnlyError
		if _, _, err := Compile(p, Layout{Walked: true}); !errors.As(err, &host) || !slices.Contains([]string{hostFlags, walksToUser}, host.Why) {
			t.Errorf("flags %#x: %v", flags, err)
		}
	}
}
