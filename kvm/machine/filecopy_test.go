package machine

import "testing"

// TestAddGiven: a copy replaces a file with its path, and debug information is kept once.
func TestAddGiven(t *testing.T) {
	var all []givenFile
	for i, c := range []struct {
		path, b   string
		namesOnly bool
		want      string // the bytes of all files
	}{
		{"/a", "copy ", false, "copy "},
		{"/a.dwp", "part ", true, "copy part "},
		{"/a", "names ", true, "copy part names "},
		{"/a.dwp", "part ", true, "copy part names "},
		{"/a.dwp", "other ", true, "copy part names other "},
		{"/a", "again ", false, "part names other again "},
	} {
		all = addGiven(all, givenFile{c.path, []byte(c.b)}, c.namesOnly)
		got := ""
		for _, f := range all {
			got += string(f.b)
		}
		if got != c.want {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
}
