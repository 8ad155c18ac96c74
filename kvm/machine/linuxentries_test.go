package machine

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestLinuxEntries: thousands of a kernel's functions have a probe at their entry while
// the guest works, with a jump and a count in the guest where they can; it goes on as if
// there were none, and says nothing of it.
func TestLinuxEntries(t *testing.T) {
	const turns, inTurn = 2, 2000
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := bootLinux(t, dir, "i=0; while true; do cat /etc/passwd /proc/version >/dev/null; ls / >/dev/null; echo $i; i=$((i+1)); done", nil)
			e, view := m.Engine(), m.Image()
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			await(t, m, "0")
			at, host, err := m.AllocShared(64, false)
			if err != nil {
				t.Fatal(err)
			}
			all := view.Symbols()
			r := rand.New(rand.NewPCG(1, 2))
			onHost := func(*probe.Context) int { return 0 }
			for range turns {
				var ps []*probe.Kprobe
				taken := map[guest.GVA]bool{}
				for len(ps) < inTurn {
					s := all[r.IntN(len(all))]
					p := &probe.Kprobe{Addr: s.Addr, Pre: onHost, Stage: &probe.Stage{
						Code: []byte("\xf0\x48\xff\x06\xc3"), NoStrings: true, Stack: 8, Block: at, // lock incq (%rsi); ret
					}}
					if _, err := e.Check(p); err == nil && s.Kind == guest.SymFunc && !taken[s.Addr] {
						taken[s.Addr] = true
						ps = append(ps, p)
					}
				}
				if err := e.Register(probe.Probes(ps)...); err != nil {
					t.Fatal(err)
				}
				if err := e.Optimize(); err != nil {
					t.Fatal(err)
				}
				before := binary.LittleEndian.Uint64(host)
				rounds, err := strconv.Atoi(lines(m)[len(lines(m))-1])
				if err != nil {
					t.Fatal(err)
				}
				await(t, m, strconv.Itoa(rounds+3))
				inGuest, why, hits := 0, map[string]int{}, uint64(0)
				for _, i := range e.List() {
					if i.InGuest {
						inGuest++
					}
					why[i.Unoptimized.Reason]++
					hits += i.Stats.Hits
				}
				counted := binary.LittleEndian.Uint64(host) - before
				t.Log(len(ps), "probes,", inGuest, "in the guest", why, "counted", counted, "there,", hits, "by exits")
				if inGuest < len(ps)*9/10 || counted == 0 || why["not_mapped"] != 0 {
					t.Errorf("%d of %d in the guest, and %d hits", inGuest, len(ps), counted)
				}
				if err := e.Unregister(ps...); err != nil {
					t.Error(err)
				}
			}
			for _, l := range lines(m) {
				if strings.Contains(l, "WARNING") || strings.Contains(l, "BUG") || strings.Contains(l, "Oops") {
					t.Error(l)
				}
			}
		})
	}
}
