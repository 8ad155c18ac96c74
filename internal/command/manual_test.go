package command

import (
	"context"
	"slices"
	"testing"

	"maps"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestManuals(t *testing.T) {
	nothing := func(context.Context, *Run) error { return nil }
	p := Program{Spec: Spec{
		Use: "prog", Short: "Do things", Sub: []Spec{
			{Use: "do THING", Short: "Do 'a' thing", Long: "First.\n.not a request\n  a \\ b", Example: "  prog do -x", Run: nothing,
				Flags: func(f *pflag.FlagSet) { f.Bool("much", false, "do `more` of it") }},
		},
	}}
	pages := p.Manuals()
	names := slices.Sorted(maps.Keys(pages))
	if want := []string{"prog", "prog-completion", "prog-completion-bash", "prog-completion-fish", "prog-completion-powershell", "prog-completion-zsh", "prog-do"}; !slices.Equal(names, want) {
		t.Errorf("pages %v, want %v", names, want)
	}
	want := `.TH "PROG-DO" 1 "" guestprobe "guestprobe"
.SH NAME
prog\-do \- Do \(aqa\(aq thing
.SH SYNOPSIS
.nf
prog do THING [flags]
.fi
.SH DESCRIPTION
.nf
First.
\&.not a request
  a \e b
.fi
.SH EXAMPLES
.nf
  prog do \-x
.fi
.SH OPTIONS
.nf
  \-h, \-\-help        help for do
      \-\-much more   do more of it
.fi
`
	page := pages["prog-do"]
	if len(page) < len(want) {
		t.Fatalf("%q", page)
	}
	if diff := cmp.Diff(want, page[:len(want)]); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
}
