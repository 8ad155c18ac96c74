package script

import "testing"

// TestProblems: the warning about a failure names its cause.
func TestProblems(t *testing.T) {
	for _, c := range []struct {
		what  string
		errno int64
		want  string
	}{
		{"", 14, "Bad address"},
		{siteFull, 7, siteFull},
		{siteFull, 16, "Element could not be updated: another run is about to, and has not ended"},
		{siteStack, 14, "Stack could not be kept: the interrupted code has none of this kind, or it cannot be read"},
		{siteStack, 17, "Stack could not be kept: there is no room for others"},
		{siteStack, 16, "Stack could not be kept"},
	} {
		if got := problem(c.what, c.errno); got != c.want {
			t.Errorf("%q of %q, want %q", got, c.what, c.want)
		}
	}
}
