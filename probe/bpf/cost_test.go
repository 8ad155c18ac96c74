package bpf

import (
	"errors"
	"fmt"
	"testing"
)

// badEnv is an Env with one page of memory, which counts the accesses.
type badEnv struct {
	NoEnv
	good  uint64 // number of the page
	tries int
}

func (e *badEnv) ReadKernel(addr uint64, p []byte) error {
	e.tries++
	if addr>>pageShift == e.good && (addr+uint64(len(p))-1)>>pageShift == e.good {
		return nil
	}
	return errNoGuest
}

// TestReadsThatFail wants that reads that fail are few in one run, that one of a page
// that is known not to be there is not tried again, and that those that do not fail
// may be many.
func TestReadsThatFail(t *testing.T) {
	const loop = `
	lddw r6, %#x
	mov r7, %d
again:
	mov r1, r10
	add r1, -16
	mov r2, %d
	mov r3, r6
	call %d
	add r6, %d
	sub r7, 1
	jne r7, 0, again
	mov r0, 0
	exit`
	const most = DefaultBudget / costFault
	for _, tt := range []struct {
		name        string
		start       uint64
		turns, size int
		helper      Helper
		step        int
		tries       int
		ends        bool
	}{
		{"pages that are not there", 0x10000, 1000, 8, HelperReadKernel, 4096, most, false},
		{"texts that are not there", 0x10000, 1000, 8, HelperReadKernelStr, 4096, most, false},
		{"one page that is not there", 0x10000, 500, 8, HelperReadKernel, 8, 1, true},
		{"one text that is not there", 0x10000, 500, 8, HelperReadKernelStr, 8, 1, true},
		{"behind the end of a page", 0x5ff9, 1000, 8, HelperReadKernel, 0, most, false},
		{"what is there", 0x5000, 10000, 8, HelperReadKernel, 0, 10000, true},
		{"addresses of the program's", segPointer(segStack, 0, 0), 10000, 8, HelperReadKernel, 0, 0, true},
		{"no addresses", 0x8000000000000000, 1000, 8, HelperReadKernel, 4096, most, false},
	} {
		src := fmt.Sprintf(loop, tt.start, tt.turns, tt.size, tt.helper, tt.step)
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, src)})
		if err != nil {
			t.Fatal(err)
		}
		e, v := &badEnv{good: 5}, NewVM(p, 0)
		for range 2 { // a run knows nothing of the one before
			e.tries = 0
			_, err = v.Run(make([]byte, RegsSize), e)
			var f *Fault
			if ended := err == nil; ended != tt.ends || !ended && (!errors.As(err, &f) || f.Code != FaultBudget) || e.tries != tt.tries {
				t.Errorf("%s: %d tries, %v, want %d, end %v", tt.name, e.tries, err, tt.tries, tt.ends)
			}
		}
	}
}

// TestCallCosts wants that what one run can have done by helpers is bounded, whatever
// they are about.
func TestCallCosts(t *testing.T) {
	big, err := NewMap(MapSpec{Name: "big", Kind: Array, KeySize: 4, ValueSize: MaxValueSize, MaxEntries: 1}, 1, Heap{})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := NewMap(MapSpec{Name: "keys", Kind: Hash, KeySize: MaxKeySize, ValueSize: 8, MaxEntries: 16}, 1, Heap{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		h    Helper
		n    int
		m    *Map
		most int64 // calls in a run
	}{
		{HelperMapUpdate, 0, big, 8},
		{HelperMapLookup, 0, keys, 2000},
		{HelperReadKernel, 8, nil, 64},
		{HelperReadKernelStr, maxRead, nil, 64},
		{HelperGetStack, 0, nil, 128},
		{HelperTracePrintk, 0, nil, 256},
		{HelperRingOutput, MaxValueSize, nil, 8},
	} {
		if n := DefaultBudget / CallCost(tt.h, tt.n, tt.m); n > tt.most {
			t.Errorf("%v of %d bytes: %d calls in a run, at most %d", tt.h, tt.n, n, tt.most)
		}
	}
	p, err := New(Spec{Kind: Kprobe, Maps: []*Map{big}, Insns: mustAssemble(t, `
	stw [r10-4], 0
	ldval r6, 0, 0
	mov r7, 100
again:
	ldmap r1, 0
	mov r2, r10
	add r2, -4
	mov r3, r6
	mov r4, 0
	call 2
	sub r7, 1
	jne r7, 0, again
	mov r0, 0
	exit`)})
	if err != nil {
		t.Fatal(err)
	}
	var f *Fault
	if _, err := NewVM(p, 0).Run(make([]byte, RegsSize), NoEnv{}); !errors.As(err, &f) || f.Code != FaultBudget {
		t.Errorf("100 copies of 1 MiB in a run: %v", err)
	}
}
