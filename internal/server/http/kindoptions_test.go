package http

import (
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestKindOptionsAnswer is about the messages of refusals: the daemon refuses exactly the options that session.KindOptions says a kind does not
// have, with the message that is there.
func TestKindOptionsAnswer(t *testing.T) {
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
	for _, o := range session.KindOptions {
		if give[o.Name] == nil {
			t.Errorf("the test does not know %s", o.Name)
			continue
		}
		for kind, def := range map[event.Kind]string{event.KindProbe: "p:e do_fork", event.KindReturn: "r:e do_fork", event.KindWatch: "w:e w@jiffies"} {
			text, detail := o.Refusal(kind)
			spec := api.ProbeSpec{Def: def}
			give[o.Name](&spec)
			_, err := h.c.Attach(h.ctx, spec)
			var wire *api.Error
			refused := errors.As(err, &wire) && wire.Code == api.CodeUnavailable && wire.Message == text && wire.Detail == detail
			switch {
			case !o.Has(kind) && !refused:
				t.Errorf("%s of %q: %v, want %s (%s)", o.Name, def, err, text, detail)
			case o.Has(kind) && errors.As(err, &wire) && wire.Message == text && text != "":
				t.Errorf("%s of %q: %v, and the table says that it has it", o.Name, def, err)
			}
			if _, err := h.c.DetachAll(h.ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}
