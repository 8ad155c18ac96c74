package code

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// room is a target with two areas and pages anywhere.
type room struct {
	bytes map[guest.GVA]byte
	used  [2]int
	size  int                  // of an area
	taken func(guest.GVA) bool // MapExec fails there
}

const (
	kernelText = guest.GVA(0xffff_ffff_8000_0000)
	userText   = guest.GVA(0x40_0000)
)

var errFull = errors.New("full")

func newRoom(size int) *room { return &room{bytes: map[guest.GVA]byte{}, size: size} }

func (r *room) AllocExec(near guest.GVA, size int) (guest.GVA, error) {
	user := near < 1<<47
	if r.used[guest.Level(user)]+size > r.size {
		return 0, errFull
	}
	at := map[bool]guest.GVA{false: kernelText, true: userText}[user] + 1<<24 + guest.GVA(r.used[guest.Level(user)])
	r.used[guest.Level(user)] += size
	return at, nil
}

func (r *room) WriteExec(a guest.GVA, p []byte) error {
	for i, b := range p {
		r.bytes[a+guest.GVA(i)] = b
	}
	return nil
}

func (r *room) MapExec(_, a guest.GVA, _ int) error {
	if r.taken != nil && r.taken(a) {
		return guest.ErrMapped
	}
	return nil
}

// tenant is a resident with its code.
type tenant struct {
	at   guest.GVA
	code []byte
	user bool
}

// TestMemory puts code everywhere, and finds who has each byte.
func TestMemory(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		r := newRoom(256 << 10)
		m := New[*tenant](r)
		var all []*tenant
		for range 400 {
			x := &tenant{user: rnd.IntN(2) == 0, code: make([]byte, 1+rnd.IntN(600))}
			for i := range x.code {
				x.code[i] = byte(rnd.Uint32())
			}
			text := kernelText
			if x.user {
				text = userText
			}
			var err error
			if rnd.IntN(4) == 0 {
				x.code = x.code[:min(5, len(x.code))]
				x.at = text + 1<<26 + guest.GVA(rnd.IntN(8*guest.PageSize))
				err = m.PutAt(x.at, text, x.user, x, x.code)
				over := slices.ContainsFunc(all, func(y *tenant) bool {
					return y.at < x.at+guest.GVA(len(x.code)) && x.at < y.at+guest.GVA(len(y.code))
				})
				if crosses := pageOf(x.at) != pageOf(x.at+guest.GVA(len(x.code))-1); (err != nil) != (over || crosses) {
					t.Fatalf("seed %d: code at %v: %v, over another's: %v", seed, x.at, err, over)
				}
			} else {
				err = m.Put(text, x.user, x, func(at guest.GVA) ([]byte, error) {
					x.at = at
					return x.code, nil
				})
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if x.at%line != 0 {
					t.Errorf("seed %d: code begins at %v", seed, x.at)
				}
			}
			if err == nil {
				all = append(all, x)
			}
		}
		for _, x := range all {
			for i, b := range x.code {
				a := x.at + guest.GVA(i)
				if m.ResidentAt(a) != x || r.bytes[a] != b {
					t.Fatalf("seed %d: at %v is %p with %#x, want %p with %#x", seed, a, m.ResidentAt(a), r.bytes[a], x, b)
				}
				if user, ok := m.Owns(a); !ok || user != x.user {
					t.Fatalf("seed %d: %v is ours: %v, user: %v", seed, a, ok, user)
				}
			}
		}
		for _, a := range []guest.GVA{0, kernelText, userText, kernelText + 1<<26 - 1, ^guest.GVA(0)} {
			if _, ok := m.Owns(a); ok || m.ResidentAt(a) != nil {
				t.Errorf("seed %d: %v is somebody's", seed, a)
			}
		}
	}
}

// TestMemoryEnds: each way in which there can be no room has its error, costs
// nothing, and leaves what there is alone.
func TestMemoryEnds(t *testing.T) {
	r := newRoom(8 << 10)
	m := New[*tenant](r)
	put := func(n int) (*tenant, error) {
		x := &tenant{code: bytes.Repeat([]byte{byte(n)}, n)}
		return x, m.Put(kernelText, false, x, func(at guest.GVA) ([]byte, error) {
			x.at = at
			return x.code, nil
		})
	}
	first, err := put(4 << 10) // a chunk of 16 KiB is not available
	if err != nil {
		t.Fatal(err)
	}
	if _, err := put(4<<10 + 1); !errors.Is(err, ErrNoMemory) || !errors.Is(err, errFull) {
		t.Errorf("more than there is: got %v", err)
	}
	last, err := put(4 << 10)
	if err != nil {
		t.Errorf("the rest: %v", err)
	}
	if _, err := put(1); !errors.Is(err, ErrNoMemory) {
		t.Errorf("of nothing: got %v", err)
	}
	if m.ResidentAt(first.at+4095) != first || m.ResidentAt(last.at) != last {
		t.Error("the failures have moved somebody")
	}
	far := kernelText - 1<<32
	if err := m.Put(far, false, last, nil); !errors.Is(err, ErrNoMemory) {
		t.Errorf("for text far away: got %v", err)
	}
	if err := New[*tenant](newRoom(1<<20)).Put(far, false, last, nil); !errors.Is(err, ErrReach) {
		t.Errorf("from a target that has memory elsewhere only: got %v", err)
	}
	own := errors.New("mine")
	if err := New[*tenant](newRoom(1<<20)).Put(kernelText, false, last, func(guest.GVA) ([]byte, error) { return nil, own }); err != own {
		t.Errorf("build's error: got %v", err)
	}
	r.taken = func(a guest.GVA) bool { return a < kernelText+1<<26 }
	for _, c := range []struct {
		at   guest.GVA
		user bool
		ok   bool
	}{
		{kernelText + 1<<26, false, true},
		{kernelText + 1<<26 + 4, false, false},
		{kernelText + 1<<26 + 5, false, true},
		{kernelText + 1<<26 + 100, true, false},   // the page is the kernel's
		{kernelText + 1<<26 - 5, false, false},    // something else is mapped there
		{kernelText + 1<<26 + 4092, false, false}, // it crosses
		{1 << 47, false, false},                   // not canonical
		{first.at + 4096 + 100, false, false},     // in a chunk
	} {
		if err := m.PutAt(c.at, kernelText, c.user, last, make([]byte, 5)); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrTaken) {
			t.Errorf("at %v: got %v, want success: %v", c.at, err, c.ok)
		}
	}
	if pages := m.MappedPages(false); !slices.Equal(pages, []guest.GVA{kernelText + 1<<26}) {
		t.Errorf("mapped pages are %v", pages)
	}
	m.Forget()
	if m.ResidentAt(first.at) != nil {
		t.Error("something is left behind a reset")
	}
}

// TestLend: bytes of the guest's text have a resident, and are not the engine's: nothing is
// written there, or given to others.
func TestLend(t *testing.T) {
	r := newRoom(64 << 10)
	m := New[*tenant](r)
	a, b := &tenant{}, &tenant{}
	at := []guest.GVA{kernelText + 3, kernelText + 5, kernelText + guest.PageSize + 1}
	m.Lend(at, a)
	m.Lend([]guest.GVA{kernelText + 8}, b)
	check := func(there bool) {
		t.Helper()
		for off := range guest.GVA(2 * guest.PageSize) {
			x := kernelText + off
			var want *tenant
			switch {
			case x == kernelText+8:
				want = b
			case there && slices.Contains(at, x):
				want = a
			}
			if got := m.ResidentAt(x); got != want {
				t.Errorf("%v has %p, want %p", x, got, want)
			}
			if _, ours := m.Owns(x); ours {
				t.Errorf("%v is the engine's", x)
			}
		}
	}
	check(true)
	if err := m.Remove(a); err != nil {
		t.Fatal(err)
	}
	check(false)
	if m.UsedBytes() != 1 || len(r.bytes) != 0 {
		t.Errorf("%d bytes are used, %d written", m.UsedBytes(), len(r.bytes))
	}
	m.Lend(at, a)
	check(true)
	m.Forget()
	if m.ResidentAt(at[0]) != nil {
		t.Error("something is there still")
	}
}
