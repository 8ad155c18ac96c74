package source

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/linux"
)

// TestFrames: functions around addresses of a file, which are looked up once.
func TestFrames(t *testing.T) {
	file, err := elf.Parse(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	in, fs := &testFiles{file: file}, &Files{}
	info, err := fs.Info(in, "/opt/a@1/app")
	if err != nil {
		t.Fatal(err)
	}
	places, err := info.Places("fs.c", 71)
	if err != nil || len(places) == 0 {
		t.Fatalf("%v, %v", places, err)
	}
	want := info.Frames(places[0].Addr)
	if len(want) == 0 || want[0].Line != 71 || !strings.HasSuffix(want[0].File, "fs.c") {
		t.Fatalf("%+v", want)
	}
	at := guest.GVA(places[0].Addr)
	for range 2 {
		if got := fs.Frames(in, at); !slices.Equal(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if in.asked != 1 {
		t.Errorf("looked up %d times", in.asked)
	}
	if got := fs.Frames(in, 1<<40); got != nil || in.asked != 1 {
		t.Errorf("of no known file: %+v", got)
	}
	if got := fs.Frames(nil, at); got != nil {
		t.Errorf("of a guest without files: %+v", got)
	}
	kept := fs.frames.forVersion(linux.DebugVersion{})
	kept.spent = maxLooking
	if got := fs.Frames(in, at+1); got != nil || in.asked != 1 {
		t.Errorf("looked up although it has taken too long: %+v", got)
	}
	if got := fs.Frames(in, at); !slices.Equal(got, want) {
		t.Errorf("what is known is gone: %+v", got)
	}

	in, fs = &testFiles{file: file, absent: 1}, &Files{}
	if got := fs.Frames(in, at); got != nil || in.asked != 1 {
		t.Errorf("of a file that is not there: %+v", got)
	}
	kept = fs.frames.forVersion(linux.DebugVersion{})
	kept.missing = time.Now().Add(time.Hour)
	if got := fs.Frames(in, at); got != nil || in.asked != 1 {
		t.Errorf("asked again at once: %+v", got)
	}
	kept.missing = time.Time{}
	if got := fs.Frames(in, at); !slices.Equal(got, want) {
		t.Errorf("not asked again: %+v", got)
	}
}

// TestFramesBounded: of many or long names a part.
func TestFramesBounded(t *testing.T) {
	all := make([]debuginfo.Frame, 1000)
	for i := range all {
		all[i] = debuginfo.Frame{Function: strings.Repeat("f", 2000), File: strings.Repeat("d", 5000), Line: i, Inlined: i < 999}
	}
	got := limitFrames(all)
	if len(got) != maxInlined || len(got[0].Function) != maxName || len(got[0].File) != maxPath || got[maxInlined-2].Line != maxInlined-2 || got[maxInlined-1].Line != 999 || got[maxInlined-1].Inlined {
		t.Errorf("%d: %+v", len(got), got[maxInlined-2:])
	}
	if got := limitFrames([]debuginfo.Frame{{Function: "a\xffb", File: "x.c", Line: 1}}); !slices.Equal(got, []debuginfo.Frame{{Function: "a\uFFFDb", File: "x.c", Line: 1}}) {
		t.Errorf("%+v", got)
	}
	if got := limitFrames(nil); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}
