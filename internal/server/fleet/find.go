package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// Daemon is one that was found.
type Daemon struct {
	ID     string // of this run of the daemon
	Name   string // as the daemon gives it; with a part of the ID if several have the same
	Labels Labels
	Speaks string        // version of its messages to the fleet
	Since  time.Duration // from the question to its answer
	State  *State        // nil: not requested, or the daemon is older
}

// subject returns the subject for connections to it.
func (d Daemon) subject() string { return prefix + "." + d.ID + "." + connectEnd }

// compatible reports whether it speaks our protocol: the first number of the
// version is equal.
func (d Daemon) compatible() bool { return strings.HasPrefix(d.Speaks, serviceVersion[:2]) }

// serviceID matches valid IDs, which are parts of subjects.
var serviceID = regexp.MustCompile(`^[A-Za-z0-9]{8,64}$`)

// Look describes a search for daemons, and how long they may take to answer.
type Look struct {
	Where  Where
	Expect int           // how many daemons to wait for, until ctx ends; 0: not known
	Quiet  time.Duration // without a new answer for that long, the search is complete
	State  bool          // also request the daemons' State
}

// MaxDaemons bounds how many daemons a search can find.
const MaxDaemons = 20_000

// Find returns the present daemons, by name.
func (n *Network) Find(ctx context.Context, l Look) ([]Daemon, error) {
	found := map[string]Daemon{}
	for {
		if err := n.ask(ctx, l, found); err != nil {
			return nil, err
		}
		if len(found) >= l.Expect || ctx.Err() != nil {
			break // expected daemons may have joined after the question
		}
	}
	ds := slices.Collect(maps.Values(found))
	names := map[string]int{}
	for _, d := range ds {
		names[d.Name]++
	}
	for i, d := range ds {
		if names[d.Name] > 1 {
			ds[i].Name += "#" + d.ID[len(d.ID)-4:]
		}
	}
	slices.SortFunc(ds, func(a, b Daemon) int { return CompareNames(a.Name, b.Name) })
	return ds, nil
}

// arrivedSubject receives the description of each daemon that joins the fleet.
const arrivedSubject = prefix + ".arrived"

// Arrivals calls each with matching daemons that are not in known, and with
// daemons that join until ctx ends, from one goroutine. If the message about a
// new daemon is lost, the daemon is found half a minute later.
func (n *Network) Arrivals(ctx context.Context, l Look, known []Daemon, each func(Daemon)) error {
	come := make(chan *nats.Msg, 1024)
	sub, err := n.nc.ChanSubscribe(arrivedSubject, come)
	if err != nil {
		return fmt.Errorf("wait for daemons: %w", err)
	}
	defer sub.Unsubscribe()
	ids, names := map[string]bool{}, map[string]bool{}
	for _, d := range known {
		ids[d.ID], names[d.Name] = true, true
	}
	meet := func(d Daemon) {
		if ids[d.ID] || len(ids) >= MaxDaemons || !l.Where.Match(d.Labels) {
			return
		}
		if d.Name = d.Labels["name"]; names[d.Name] {
			d.Name += "#" + d.ID[len(d.ID)-4:]
		}
		ids[d.ID], names[d.Name] = true, true
		each(d)
	}
	l.Expect = 0
	for ctx.Err() == nil {
		look, cancel := context.WithTimeout(ctx, askTime)
		ds, err := n.Find(look, l)
		cancel()
		if err != nil && ctx.Err() == nil {
			n.log.Debug("fleet: look for daemons", "err", err)
		}
		for _, d := range ds {
			meet(d)
		}
		timer := time.NewTimer(lookEvery)
		for waiting := true; waiting; {
			select {
			case m := <-come:
				if d, ok := daemonOf(m.Data); ok {
					meet(d)
				}
			case <-timer.C:
				waiting = false
			case <-ctx.Done():
				waiting = false
			}
		}
		timer.Stop()
	}
	return nil
}

// ask sends one request, and collects the answers.
func (n *Network) ask(ctx context.Context, l Look, found map[string]Daemon) error {
	inbox := n.nc.NewInbox()
	answers := make(chan *nats.Msg, MaxDaemons) // all may answer at once, and answers without room are dropped
	sub, err := n.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return fmt.Errorf("look for daemons: %w", err)
	}
	defer sub.Unsubscribe()
	verb := micro.InfoVerb
	if l.State {
		verb = micro.StatsVerb
	}
	ask, err := micro.ControlSubject(verb, prefix, "")
	if err != nil {
		return fmt.Errorf("look for daemons: %w", err)
	}
	began := time.Now()
	if err := n.nc.PublishRequest(ask, inbox, nil); err != nil {
		return fmt.Errorf("look for daemons: %w", err)
	}
	quiet := time.NewTimer(l.Quiet)
	defer quiet.Stop()
	for {
		select {
		case m := <-answers:
			if m.Header.Get("Status") == noResponders && l.Expect == 0 {
				return nil
			}
			if d, ok := daemonOf(m.Data); ok && l.Where.Match(d.Labels) {
				d.Since = time.Since(began)
				if found[d.ID] = d; len(found) == MaxDaemons || l.Expect > 0 && len(found) >= l.Expect {
					return nil
				}
			}
			quiet.Reset(l.Quiet)
		case <-quiet.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// maxInfo bounds a daemon's description of itself, in bytes.
const maxInfo = 64 << 10

// daemonOf decodes a service's description of itself, with its state or without.
func daemonOf(b []byte) (d Daemon, ok bool) {
	var info struct {
		micro.ServiceIdentity
		Endpoints []struct {
			Name string          `json:"name"`
			Data json.RawMessage `json:"data"`
		} `json:"endpoints"`
	}
	if len(b) > maxInfo || json.Unmarshal(b, &info) != nil || info.Name != prefix || len(info.Version) > maxLabel || !serviceID.MatchString(info.ID) || len(info.Metadata) > 2*maxLabels {
		return d, false
	}
	d = Daemon{ID: info.ID, Labels: Labels{}, Speaks: cleanLabel(info.Version)}
	for name, value := range info.Metadata {
		if labelName.MatchString(name) && plain(value) {
			d.Labels[name] = value
		}
	}
	for _, e := range info.Endpoints {
		var st State
		if e.Name != connectEnd || len(e.Data) == 0 || json.Unmarshal(e.Data, &st) != nil {
			continue
		}
		if u := st.Unkept; u != nil {
			u.Error, u.Waiting = plainText(u.Error), max(0, u.Waiting)
		}
		d.State = &st
	}
	d.Name = d.Labels["name"]
	return d, d.Name != ""
}

// CompareNames compares names that contain numbers, vm2 before vm10, for
// slices.SortFunc.
func CompareNames(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x > 0 && y > 0 {
			m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
			if len(m) != len(n) {
				return len(m) - len(n)
			}
			if d := strings.Compare(m, n); d != 0 {
				return d
			}
			a, b = a[x:], b[y:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

// digits returns how many digits s begins with.
func digits(s string) int {
	return len(s) - len(strings.TrimLeft(s, "0123456789"))
}
