package bpf

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestSpinLock counts under a lock on several vCPUs, and releases locks that runs leave behind.
func TestSpinLock(t *testing.T) {
	m := testMaps(t, Heap{}, MapSpec{Name: "locked", Kind: Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, LockAt: 1})[0]
	program := func(src string) *Program {
		p, err := New(Spec{Kind: Kprobe, Maps: []*Map{m}, Insns: mustAssemble(t, src)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	count := program("ldval r6, 0, 0\nmov r1, r6\ncall 93\nldxdw r2, [r6+8]\nadd r2, 1\nstxdw [r6+8], r2\nmov r1, r6\ncall 94\nmov r0, 0\nexit")
	if why := count.HostReason(); why != "it calls spin_lock, which waits for other vCPUs" {
		t.Error(why)
	}
	if why := program("ldval r6, 0, 0\nmov r0, 0\nexit").HostReason(); why != `map "locked" has a lock in its values, which only the host takes` {
		t.Error(why)
	}
	const notLock = "argument 1 of spin_lock is not the lock in a value of a map"
	for src, want := range map[string]string{
		"ldval r1, 0, 0\ncall 93\nldval r1, 0, 0\ncall 94\nmov r0, 0\nexit":  "",
		"ldval r1, 0, 4\ncall 93\nmov r0, 0\nexit":                           notLock,
		"stdw [r10-8], 0\nmov r1, r10\nadd r1, -8\ncall 93\nmov r0, 0\nexit": notLock,
		"mov r1, 5\ncall 93\nmov r0, 0\nexit":                                notLock,
	} {
		got := ""
		if w := program(src).Warnings(); len(w) > 0 {
			got = w[0].What
		}
		if got != want {
			t.Errorf("%q: warning %q, want %q", src, got, want)
		}
	}
	two := testMaps(t, Heap{}, MapSpec{Name: "two", Kind: Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, LockAt: 1})[0]
	both, err := New(Spec{Kind: Kprobe, Maps: []*Map{m, two}, Insns: mustAssemble(t, "ldval r1, 0, 0\ncall 93\nldval r1, 1, 0\ncall 93\nmov r0, 0\nexit")})
	if err != nil {
		t.Fatal(err)
	}
	var second *Fault
	if _, err := NewVM(both, 0).Run(make([]byte, RegsSize), NoEnv{}); !errors.As(err, &second) || second.Code != FaultLock {
		t.Errorf("a second lock: %v", err)
	}
	var all sync.WaitGroup
	const turns = 2000
	done := make([]int, 2)
	for cpu := range done {
		all.Go(func() {
			v := NewVM(count, cpu)
			for range turns {
				if _, err := v.Run(make([]byte, RegsSize), NoEnv{}); err == nil {
					done[cpu]++
				}
			}
		})
	}
	all.Wait()
	if n := int(le64(m.valueAt(0, 0)[8:])); n != done[0]+done[1] || n < turns {
		t.Errorf("%d, and %v runs", n, done)
	}
	for src, code := range map[string]FaultCode{
		"ldval r1, 0, 0\ncall 93\nmov r0, 7\nexit":                          NoFault, // held at the end
		"ldval r1, 0, 0\ncall 93\nmov r2, 0\nldxdw r0, [r2+0]\nexit":        FaultLoad,
		"ldval r1, 0, 0\ncall 93\nldval r1, 0, 0\ncall 93\nmov r0, 0\nexit": FaultLock,
		"ldval r1, 0, 0\ncall 94\nmov r0, 0\nexit":                          FaultLock,
		"ldval r1, 0, 8\ncall 93\nmov r0, 0\nexit":                          FaultMemArg,
		"mov r1, r10\nadd r1, -8\ncall 93\nmov r0, 0\nexit":                 FaultMemArg,
		"ldval r1, 0, 0\ncall 93\nldval r1, 0, 0\ncall 94\nmov r0, 0\nexit": NoFault,
		"ldval r1, 0, 0\ncall 93\nldval r1, 0, 4\ncall 94\nmov r0, 0\nexit": FaultLock,
		"stw [r10-4], 0\nmov r2, r10\nadd r2, -4\nstdw [r10-24], 5\nstdw [r10-16], 9\nmov r3, r10\nadd r3, -24\nmov r4, 0\nldmap r1, 0\ncall 2\nexit": NoFault,
	} {
		_, err := NewVM(program(src), 0).Run(make([]byte, RegsSize), NoEnv{})
		var f *Fault
		got := NoFault
		if errors.As(err, &f) {
			got = f.Code
		}
		if v := m.valueAt(0, 0); got != code || le64(v)&(1<<32-1) != 0 {
			t.Errorf("%q: %v, want %v, and the lock is %d", src, err, code, v[0])
		}
	}
	// The last update left the lock as it was, and changed the rest.
	if v := m.valueAt(0, 0); le64(v[8:]) != 9 {
		t.Errorf("value %v", v)
	}
	// A lock that another vCPU holds.
	store32(m.valueAt(0, 0), 1)
	if _, err := NewVM(count, 0).Run(make([]byte, RegsSize), NoEnv{}); fmt.Sprint(err) == "<nil>" || err.(*Fault).Code != FaultLock {
		t.Error(err)
	}
	if v := m.valueAt(0, 0); v[0] != 1 {
		t.Error("the lock of another vCPU was released")
	}
}

// TestLockOf finds locks in types of values.
func TestLockOf(t *testing.T) {
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	lock := &btf.Struct{Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: u32}}}
	value := &btf.Struct{Name: "value", Size: 12, Members: []btf.Member{{Name: "a", Type: u32}, {Name: "b", Type: u32, Offset: 32}, {Name: "lock", Type: &btf.Typedef{Name: "lock_t", Type: lock}, Offset: 64}}}
	for _, tt := range []struct {
		t    btf.Type
		want uint32
	}{{value, 9}, {&btf.Typedef{Name: "value_t", Type: value}, 9}, {lock, 0}, {u32, 0}} {
		if got := lockOf(tt.t); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.t, got, tt.want)
		}
	}
	if _, err := NewMap(MapSpec{Name: "m", Kind: PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1, LockAt: 1}, 1, Heap{}); err == nil {
		t.Error("a lock in values of each vCPU")
	}
}
