package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// script generates a script that counts hits and returns in several ways. The
// counts of its probes must match all sums. One in three scripts clears its
// counts again and again.
func (w *worker) script(r *rand.Rand) api.RunScript {
	var at []string
	var fn string
	for range 1 + r.IntN(3) {
		for {
			f := &w.sites.funcs[r.IntN(len(w.sites.funcs))]
			if f.sym.User || !f.unique {
				continue
			}
			fn = f.sym.Name
			at = append(at, "kprobe:"+fn)
			if off := f.starts[r.IntN(len(f.starts))]; off > 0 && r.IntN(2) == 0 {
				at[len(at)-1] += fmt.Sprintf("+%d", off)
			}
			break
		}
	}
	text := strings.Join(at, ", ") + " { @hits = count(); @by[cpu] = sum(1); @last = reg(\"di\"); } kretprobe:" + fn + " { @returns = count(); }"
	if r.IntN(3) == 0 {
		text += " interval:ms:5 { print(@hits); clear(@hits); }"
	}
	w.seq++
	return api.RunScript{
		Script: text, Format: api.ScriptJSON, Detach: fmt.Sprintf("%s_%d", w.id, w.seq), OnHost: r.IntN(4) == 0,
	}
}

// scriptRefusals are the errors with which a script of ours may be rejected,
// because of its places.
var scriptRefusals = append([]api.Code{api.CodeBadScript}, refusals...)

// scriptStop runs a script without a client, stops it, and compares the counts
// in its maps with the counts of its probes.
func (w *worker) scriptStop(r *rand.Rand) {
	req, d := w.script(r), time.Duration(r.IntN(150))*time.Millisecond
	if !w.ok(w.try(func(ctx context.Context) error {
		_, err := w.c.DetachScript(ctx, req)
		return err
	}), scriptRefusals...) {
		return
	}
	w.rest(d)
	var sums scriptSums
	if !w.ok(w.try(func(ctx context.Context) error {
		all, err := w.c.FollowScript(ctx, req.Detach)
		if err != nil {
			return err
		}
		defer all.Close()
		s, err := w.c.StopScript(ctx, req.Detach)
		if err != nil {
			return err
		}
		s.Close()
		return sums.read(all)
	})) {
		return
	}
	if why := sums.wrongSum(); why != "" {
		w.fail("the sums of %q (on the host: %v) do not close: %s", req.Script, req.OnHost, why)
	}
	w.phase.count(func(t *Tally) { t.Scripts++ })
}

// scriptCut disconnects from a script that prints to it; its probes must be
// detached with it.
func (w *worker) scriptCut(r *rand.Rand) {
	req, d := w.script(r), time.Duration(r.IntN(100))*time.Millisecond
	req.Detach = ""
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	limit := time.AfterFunc(w.opt.Patience, cancel)
	s, err := w.c.RunScript(ctx, req)
	if !limit.Stop() {
		err = errNoAnswer
	}
	if !w.ok(err, scriptRefusals...) {
		return
	}
	w.rest(d)
	s.Close()
	w.phase.count(func(t *Tally) { t.Cut++ })
}

// scriptSums is a script's counts, from its output, and its end.
type scriptSums struct {
	hits, by, returns uint64
	end               *api.End
	warnings          []string
}

// read reads the output, to the end.
func (c *scriptSums) read(s *remote.Stream) error {
	for {
		r, err := s.Next()
		if errors.Is(err, io.EOF) && c.end != nil {
			return nil
		}
		if err != nil {
			return err
		}
		switch r.Type {
		case api.RecordOutput:
			var out api.Output
			if err = json.Unmarshal(r.Data, &out); err == nil {
				err = c.addPrinted(out.Text)
			}
		case api.RecordWarning:
			var warning api.Warning
			err = json.Unmarshal(r.Data, &warning)
			c.warnings = append(c.warnings, warning.Text)
		case api.RecordEnd:
			c.end = new(api.End)
			err = json.Unmarshal(r.Data, c.end)
		}
		if err != nil {
			return err
		}
	}
}

// addPrinted adds the values in lines of JSON.
func (c *scriptSums) addPrinted(text string) error {
	for line := range strings.Lines(text) {
		var l struct {
			Type string                     `json:"type"`
			Data map[string]json.RawMessage `json:"data"`
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			return fmt.Errorf("printed %q: %w", line, err)
		}
		for name, v := range l.Data {
			var n uint64
			var keyed map[string]uint64
			switch name {
			case "@hits":
				if err := json.Unmarshal(v, &n); err != nil {
					return fmt.Errorf("printed %q: %w", line, err)
				}
				c.hits += n
			case "@returns":
				if err := json.Unmarshal(v, &c.returns); err != nil {
					return fmt.Errorf("printed %q: %w", line, err)
				}
			case "@by":
				if err := json.Unmarshal(v, &keyed); err != nil {
					return fmt.Errorf("printed %q: %w", line, err)
				}
				for _, n := range keyed {
					c.by += n
				}
			}
		}
	}
	return nil
}

// wrongSum says which sum does not close, or "".
func (c *scriptSums) wrongSum() string {
	var handled, returns uint64
	for _, p := range c.end.Probes {
		if why := unbalancedSum(p); why != "" {
			return p.Name + ": " + why
		}
		if p.Kind == "r" {
			returns += p.Stats.Returns
		} else {
			handled += p.Stats.Handled
		}
	}
	switch {
	case len(c.warnings) > 0 || c.end.Lost > 0:
		return fmt.Sprintf("%d records lost, and warnings: %q", c.end.Lost, c.warnings)
	case c.hits != handled || c.by != handled:
		return fmt.Sprintf("%d hits handled, but the script has counted %d, and %d by vCPU", handled, c.hits, c.by)
	case c.returns != returns:
		return fmt.Sprintf("%d returns, but the script has counted %d", returns, c.returns)
	}
	return ""
}
