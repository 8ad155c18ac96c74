package machine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe/session"
)

// offsets returns where the function's instructions begin, from its start.
func offsets(t *testing.T, img *guest.Image, name string) (at []int) {
	t.Helper()
	s, err := img.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	code := img.Code(s.Addr, int(s.Size))
	for off := 0; off < len(code); {
		at = append(at, off)
		in, err := x86.Decode(code[off:])
		if err != nil {
			t.Fatal(err)
		}
		off += int(in.Len)
	}
	return at
}

// TestStacksInGuest walks stacks at each instruction of functions that call themselves, leave by
// jumps, have no frame, or move the stack pointer at will, and at their returns, with none, one or
// several return probes on the functions that call, in the guest and on the host: both find the
// same, frame by frame.
func TestStacksInGuest(t *testing.T) {
	x := onIdle(t)
	img := builtinImage(t)
	roots := []struct {
		name string
		args func(*rand.Rand) []uint64
	}{
		{"ackermann", func(r *rand.Rand) []uint64 { return []uint64{2, r.Uint64N(3)} }},
		{"fib_recursive", func(r *rand.Rand) []uint64 { return []uint64{4 + r.Uint64N(3)} }},
		{"tail_caller", func(r *rand.Rand) []uint64 { return []uint64{r.Uint64(), 5} }},
		{"call_next", func(*rand.Rand) []uint64 { return nil }},
		{"ret_pops", func(r *rand.Rand) []uint64 { return []uint64{r.Uint64(), 3} }},
		{"big_frame", func(r *rand.Rand) []uint64 { return []uint64{r.Uint64N(100)} }},
		{"many_args", func(r *rand.Rand) []uint64 { return []uint64{1, 2, 3, 4, 5, 6} }},
		{"frame_forms", func(*rand.Rand) []uint64 { return []uint64{1, 2} }},
	}
	hits, there := 0, 0
	run := func(seed uint64, root, place string, args []uint64) {
		t.Helper()
		r := rand.New(rand.NewPCG(seed, 2))
		others := r.IntN(3)
		for range others {
			sc := sessiontest.Start(t, x.s, fmt.Sprintf(`kretprobe:%s { @r = count(); } END { clear(@r); }`, root), session.ScriptOptions{OnHost: r.IntN(2) == 0})
			defer sc.End()
		}
		script := fmt.Sprintf(`%s /comm == "gp_call/fn"/ { @[kstack] = count(); @short[kstack(%d), reg("sp") & 8191] = count(); @n[len(kstack(%d))] = count(); print(kstack(raw)); }`, place, 1+r.IntN(6), 1+r.IntN(127))
		var out [2]string
		for i, onHost := range []bool{true, false} {
			sc := sessiontest.Start(t, x.s, script, session.ScriptOptions{OnHost: onHost})
			in := sc.Probes()[0].Site.InGuest
			x.calls(root, args...)
			if in && onHost {
				t.Errorf("%s runs in the guest", place)
			} else if in {
				hits++
				if sc.Probes()[0].Stats.InGuest > 0 {
					there++
				}
			}
			text, warnings, _ := sc.End()
			if out[i] = text; len(warnings) > 0 || !strings.Contains(text, "+") && text != "\n\n" {
				t.Fatalf("%s prints\n%s%s", place, text, warnings)
			}
		}
		if d := cmp.Diff(out[0], out[1]); d != "" {
			t.Errorf("seed %d: %s of %s(%v) with %d return probes prints (-on the host +in the guest)\n%s", seed, place, root, args, others, d)
		}
	}
	seed := uint64(0)
	for _, root := range roots {
		places := []string{"kretprobe:" + root.name}
		for i, off := range offsets(t, img, root.name) {
			if i > 4 && i%3 != 0 { // after the beginning
				continue
			}
			places = append(places, fmt.Sprintf("kprobe:%s+%d", root.name, off))
		}
		for _, place := range places {
			if seed++; testing.Short() && seed%16 != 1 {
				continue
			}
			run(seed, root.name, place, root.args(rand.New(rand.NewPCG(seed, 3))))
			if t.Failed() {
				return
			}
		}
	}
	if there < hits/2 || hits < 40 && !testing.Short() {
		t.Errorf("of %d programs in the guest %d ran there without an exit", hits, there)
	}
	t.Logf("%d of %d", there, hits)
}
