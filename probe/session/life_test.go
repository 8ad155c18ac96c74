package session_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/session"
)

// identical checks whether the code of the guest's kernel is its image's.
func (b *bare) identical(want bool) {
	b.Helper()
	same := true
	for _, r := range slices.Concat(b.img.Text(false), b.img.Text(true)) {
		text, err := b.BytesAt(r.Start, int(r.End-r.Start))
		if err != nil {
			b.Fatal(err)
		}
		same = same && string(text) == string(b.img.Code(r.Start, len(text)))
	}
	if same != want {
		b.Errorf("the text is the image's: %v, want %v", same, want)
	}
}

// arrives runs vCPU cpu to an offset of a symbol, and reports whether there was a probe.
func (b *bare) arrives(cpu int, symbol string, offset uint64) bool {
	b.Helper()
	hit, err := b.Hit(cpu, symbol, offset, nil)
	if err != nil {
		b.Fatal(err)
	}
	return hit
}

// TestProbeLife follows two probes, in kernel and in user code, from attach to detach: their descriptions, their counts by vCPU,
// and their numbers, which are never reused.
func TestProbeLife(t *testing.T) {
	b := newBare(t)
	is := b.attach("p:first do_fork flags=%di", "p user_hot")
	if len(is) != 2 {
		t.Fatalf("%d probes, want 2", len(is))
	}
	p := is[0]
	if p.ID != 1 || p.Name != "kprobes/first" || p.Spec.Def != "p:kprobes/first do_fork flags=%di" || p.Kind != 'k' || p.Symbol != "do_fork" || !p.Enabled || !p.Armed || !p.Stay ||
		p.Gone || p.Site.Pending || p.Site.User || p.Site.Optimized || p.Site.InGuest || p.OnHost != "this guest has no memory that host and guest share" ||
		p.Site.Unoptimized.Reason != "waiting" || p.Site.Unoptimized.Meaning() != "the next pass will look at it" {
		t.Errorf("attached %+v", p)
	}
	if is[1].Name != "kprobes/p_user_hot_0" || !is[1].Site.User || is[1].ID != 2 {
		t.Errorf("second: %+v", is[1])
	}
	b.identical(false)
	for i := range 5 {
		b.hit(i%2, "do_fork", p.Offset, nil)
	}
	for _, name := range []string{"first", "kprobes/first", "1"} {
		i, err := b.s.Get(name)
		if s := i.Stats; err != nil || s.Hits != 5 || s.Handled != 5 || s.Missed != 0 || len(s.CPUs) != 2 || s.CPUs[0].Hits != 3 || s.CPUs[1].Hits != 2 {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if is, err := b.s.SetEnabled(false, "first"); err != nil || is[0].Enabled || is[0].Armed {
		t.Errorf("disabled: %+v, %v", is, err)
	}
	if b.arrives(0, "do_fork", p.Offset) {
		t.Error("a disabled probe was hit")
	}
	if is, err := b.s.SetEnabled(true, "first"); err != nil || !is[0].Enabled || !is[0].Armed {
		t.Errorf("enabled: %+v, %v", is, err)
	}
	gone, err := b.s.Detach("first")
	if err != nil || len(gone) != 1 || gone[0].Armed || gone[0].Stats.Hits != 5 {
		t.Errorf("detached: %+v, %v", gone, err)
	}
	if _, err := b.s.Detach("first"); !errors.Is(err, session.ErrProbeNotFound) {
		t.Errorf("detached twice: %v", err)
	}
	rest, err := b.s.Detach()
	if err != nil || len(rest) != 1 || rest[0].ID != 2 {
		t.Errorf("detached all: %+v, %v", rest, err)
	}
	b.identical(true)
	if again := b.attach("p:first do_fork"); again[0].ID != 3 {
		t.Errorf("a number was used again: %d", again[0].ID)
	}
}

// TestRefusedBatch: a rejected list of definitions leaves nothing attached, and its names can be used again.
func TestRefusedBatch(t *testing.T) {
	b := newBare(t)
	_, err := b.apply("p:a do_fork", "p:b vfs_read", "p:c blacklisted_fn")
	if e := b.checkRefused(err, session.Code(probe.CodeBlacklisted)); e.Index == nil || *e.Index != 2 {
		t.Errorf("%v", err)
	}
	if n := len(b.s.Probes()); n != 0 {
		t.Errorf("%d probes", n)
	}
	b.identical(true)
	if is := b.attach("p:a do_fork"); is[0].ID != 1 {
		t.Errorf("number %d", is[0].ID)
	}
}

// TestAmbiguousNames: a name of several probes is rejected with a list of them. It is valid when only one is left.
func TestAmbiguousNames(t *testing.T) {
	const named = 8 // the maximum in an error
	b := newBare(t)
	b.attach("p:one/same do_fork", "p:two/same vfs_read")
	_, err := b.s.Get("same")
	if e := b.checkRefused(err, session.CodeAmbiguousName); !strings.Contains(e.Detail, "one/same, two/same") {
		t.Errorf("%+v", e)
	}
	if i, err := b.s.Get("two/same"); err != nil || i.Symbol != "vfs_read" {
		t.Errorf("two/same: %+v, %v", i, err)
	}
	if _, err := b.s.Detach(); err != nil {
		t.Fatal(err)
	}
	var defs []string
	for i := range 2 * named {
		defs = append(defs, fmt.Sprintf("p:g%02d/same vfs_read", i))
	}
	b.attach(append(defs, "p:g00/other vfs_read")...)
	_, err = b.s.Get("same")
	if e := b.checkRefused(err, session.CodeAmbiguousName); !strings.HasPrefix(e.Text, `16 probes are called "same"`) ||
		e.Detail != "say which: g00/same, g01/same, g02/same, g03/same, g04/same, g05/same, g06/same, g07/same and 8 more" {
		t.Errorf("%+v", e)
	}
	for i := range 2*named - 1 {
		if _, err := b.s.Detach(fmt.Sprintf("g%02d/same", i)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"same": "g15/same", "other": "g00/other", "19": "g00/other"} {
		if i, err := b.s.Get(name); err != nil || i.Name != want {
			t.Errorf("%s: %s, %v", name, i.Name, err)
		}
	}
	if _, err := b.s.Detach(); err != nil {
		t.Fatal(err)
	}
	if n := session.CountLeft(b.s); n != 0 {
		t.Errorf("%d names and events are left", n)
	}
}

// TestDisarmed: while all probes are disarmed none of them changes the code, including new ones.
func TestDisarmed(t *testing.T) {
	b := newBare(t)
	b.attach("p:a do_fork", "p:b vfs_read")
	if err := b.s.SetArmed(false); err != nil || b.s.Armed() {
		t.Fatal(err)
	}
	b.identical(true)
	b.attach("p:c schedule")
	b.identical(true)
	if err := b.s.SetArmed(true); err != nil || !b.s.Armed() {
		t.Fatal(err)
	}
	for _, i := range b.s.Describe(b.s.Probes()) {
		if !i.Armed || !b.arrives(0, i.Symbol, i.Offset) {
			t.Errorf("%s is not hit", i.Name)
		}
	}
}

// TestResetKeepsProbes: after a reset the probes are in the code again.
func TestResetKeepsProbes(t *testing.T) {
	b := newBare(t)
	p := b.attach("p:a do_fork")[0]
	for boot := range 2 {
		if err := b.s.Reset(func() error { return nil }, b.Reload); err != nil {
			t.Fatal(err)
		}
		b.identical(false)
		b.hit(0, "do_fork", p.Offset, nil)
		if i, err := b.s.Get("a"); err != nil || i.Stats.Hits != uint64(boot+1) {
			t.Errorf("%+v, %v", i.Stats, err)
		}
	}
}

// TestLookupOfMany: finding a probe by name takes the same time among 5,000 as among 10.
func TestLookupOfMany(t *testing.T) {
	b := newBare(t)
	lookup := func() time.Duration { // the minimum of several tries
		best := time.Hour
		for range 20 {
			begin := time.Now()
			for range 100 {
				if _, err := b.s.Find("e7"); err != nil {
					t.Fatal(err)
				}
			}
			best = min(best, time.Since(begin))
		}
		return best
	}
	var defs []string
	for i := range 5_000 {
		defs = append(defs, fmt.Sprintf("p:g%d/e%d vfs_read", i%7, i))
	}
	b.attach(defs[:10]...)
	few := lookup()
	b.attach(defs[10:]...)
	if many := lookup(); many > 20*few {
		t.Errorf("100 names are found in %v among 5,000 probes, in %v among 10", many, few)
	}
}
