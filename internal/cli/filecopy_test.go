package cli

import (
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestIsAwaited: programs that the guest does not have yet are awaited, and parts of debug information are not.
func TestIsAwaited(t *testing.T) {
	for _, c := range []struct {
		g    api.GivenFile
		want bool
	}{
		{api.GivenFile{Functions: 2}, true},
		{api.GivenFile{}, true}, // a stripped program
		{api.GivenFile{Functions: 2, Present: true}, false},
		{api.GivenFile{Functions: 2, NamesOnly: true}, true}, // debug information of a copy
		{api.GivenFile{NamesOnly: true}, false},
	} {
		if got := isAwaited(c.g); got != c.want {
			t.Errorf("%+v: %v", c.g, got)
		}
	}
}
