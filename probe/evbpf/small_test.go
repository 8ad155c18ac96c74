package evbpf

import (
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// TestSmall wants ordinary definitions in the form that costs least: no checks
// as it runs, and never missed.
func TestSmall(t *testing.T) {
	for _, tt := range []struct {
		def, filter string
		want        bool
	}{
		{"p:e vfs_read", "", true},
		{"p:e vfs_read a=%di b=%si c=%dx d=%cx e=%r8 f=%r9", "", true},
		{"p:e vfs_read fd=%di:s32 count=%dx:u64 mode=%cx:b3@2/8", "count > 100 && fd == 3", true},
		{"p:e vfs_read s=+0(%di):string", "", false},
	} {
		r := newRig(t, compile(t, tt.def, event.Options{}), tt.filter)
		_, info, err := bpf.Compile(r.prog, bpf.Layout{Fixups: true})
		if err != nil {
			t.Fatal(err)
		}
		if info.Small != tt.want {
			t.Errorf("%s filter %q: small %v, want %v", tt.def, tt.filter, info.Small, tt.want)
		}
	}
}
