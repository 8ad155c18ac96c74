package script

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestCValueIsCutOff: values beyond the limit are marked as omitted, in arrays and
// after them.
func TestCValueIsCutOff(t *testing.T) {
	i := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	const n = maxParts + 8
	whole := &btf.Array{Type: i, Nelems: 8}
	s := &btf.Struct{Name: "two", Size: 4*n + 4, Members: []btf.Member{
		{Name: "v", Type: &btf.Array{Type: i, Nelems: n}}, {Name: "tail", Type: i, Offset: 32 * n},
	}}
	data := make([]byte, s.Size)
	if got := CValue(whole, data[:32], true); got != "[0,0,0,0,0,0,0,0]" {
		t.Errorf("a small array is %s", got)
	}
	for _, c := range []struct {
		json bool
		end  string
	}{{true, `0,"..."], "...": true}`}, {false, "0,...]\n  ...\n}"}} {
		if got := CValue(s, data, c.json); !strings.HasSuffix(got, c.end) || strings.Contains(got, "tail") {
			t.Errorf("ends with %q, want %q", got[max(0, len(got)-40):], c.end)
		}
	}
}
