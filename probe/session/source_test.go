package session_test

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// typesOf returns the types of an image's BTF, for session.Options.
func typesOf(t *testing.T, img *guest.Image) func() event.Types {
	t.Helper()
	section, err := img.SectionData(".BTF", types.MaxBTF)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := types.Read(section, nil)
	if err != nil {
		t.Fatal(err)
	}
	return func() event.Types { return types.New(spec, nil) }
}

// sourceOf returns an image's debug information, for session.Options.
func sourceOf(img *guest.Image) func() (*debuginfo.Info, error) {
	return func() (*debuginfo.Info, error) {
		return debuginfo.OpenImage(img.Path, func(name string) ([]byte, error) { return img.SectionData(name, debuginfo.MaxSection) })
	}
}

// TestVariablesOfSource: definitions fetch variables by name at a place in the source. Errors say why a variable cannot be fetched.
func TestVariablesOfSource(t *testing.T) {
	img := builtinWith(t)
	b := newBareWith(t, img, nil, session.Options{Types: typesOf(t, img), Source: sourceOf(img)})
	sub := b.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	p := b.attach(`p:v fs.c:71 fd buf:string low=count:u8 pos vfs_bytes_read total=vfs_bytes_read:x64`)[0]
	text, err := b.BytesAt(probetest.StackBase, 64)
	if err != nil {
		t.Fatal(err)
	}
	copy(text, "text\x00")
	b.hit(0, "vfs_read", p.Offset, func(r *probe.Regs) {
		r.RDI, r.RSI, r.RDX, r.RCX = 0xffffffff_fffffff0, uint64(probetest.StackBase), 0x1ff, 7
	})
	_, _, line := b.next(sub)
	if _, got, _ := strings.Cut(line, ") "); got != `fd=-13 buf="text" low=255 pos=7 vfs_bytes_read=0 total=0x0` {
		t.Errorf("hit %s", line)
	}
	for def, want := range map[string]string{
		"p fs.c:71 f":                         "f is optimized out at this place",
		"p fs.c:71 f->size":                   "f is optimized out at this place",
		"p fs.c:71 nothing":                   "no variable nothing: these are fd, buf, count, pos, f, flags",
		"p fs.c:71 count->x":                  "This is not a pointer to union/structure.",
		"p fs.c:71 buf.x":                     "the structure is not in memory",
		"p workload.c:47 seed":                "DW_OP_entry_value",
		"p vfs_read nothing":                  "no variable nothing: these are fd, buf, count, pos, f, flags",
		"p vfs_read+22 fd->":                  "This is not a pointer to union/structure.",
		"p vfs_read+22 count-x":               "Failed to parse single hyphen",
		"r vfs_read f":                        "parameters are fd, buf, count, pos",
		"w rw@user_hot_calls fd":              "there are parameters at a function's entry and return only",
		"p inline:irq_restore no=irq_restore": "no variable irq_restore: these are flags",
	} {
		_, err := b.apply(def)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", def, err, want)
		}
	}
}
