package http

import (
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestKindOptions: the daemon refuses exactly the options that api.KindOptions says a kind does not have, with the message that is there.
func TestKindOptions(t *testing.T) {
	give := map[string]func(*api.ProbeSpec){
		"args":     func(s *api.ProbeSpec) { s.Args = 1 },
		"mirror":   func(s *api.ProbeSpec) { s.Mirror = "jdo_fork" },
		"override": func(s *api.ProbeSpec) { s.Override, s.Unsafe = &api.Override{}, true },
		"post":     func(s *api.ProbeSpec) { s.Post = true },
		"space":    func(s *api.ProbeSpec) { s.Space = 0x1000 },
		"atRets":   func(s *api.ProbeSpec) { s.AtRets = true },
		"emulate":  func(s *api.ProbeSpec) { s.Emulate = true },
	}
	h := serveFake(t, nil)
	for _, o := range api.KindOptions {
		if give[o.Name] == nil {
			t.Errorf("the test does not know %s", o.Name)
			continue
		}
		for kind, def := range map[string]string{api.KindProbe: "p:e do_fork", api.KindReturn: "r:e do_fork", api.KindWatch: "w:e w@jiffies"} {
			spec := api.ProbeSpec{Def: def}
			give[o.Name](&spec)
			if !o.Given(&spec) {
				t.Errorf("%s is given, and the table does not see it", o.Name)
			}
			_, err := h.c.Attach(h.ctx, spec)
			var wire *api.Error
			refused := errors.As(err, &wire) && wire.Code == api.CodeUnavailable && wire.Message == o.Refusal(kind).Message && wire.Detail == o.Refusal(kind).Detail
			switch {
			case !o.Has(kind) && !refused:
				t.Errorf("%s of %q: %v, want %+v", o.Name, def, err, o.Refusal(kind))
			case o.Has(kind) && errors.As(err, &wire) && wire.Message == o.Refusal(kind).Message && wire.Message != "":
				t.Errorf("%s of %q: %v, and the table says that it has it", o.Name, def, err)
			}
			if o.Clear(&spec); o.Given(&spec) || spec.Unsafe {
				t.Errorf("%s is still there when it was cleared", o.Name)
			}
			if _, err := h.c.DetachAll(h.ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}
