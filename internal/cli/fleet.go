package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// fleetFlags select daemons of a fleet.
type fleetFlags struct {
	fleet.Address
	where  string
	expect int
	all    bool // the daemons on this machine, instead of a fleet
}

// fleetFiles are the fleet's flags whose values are files or addresses (command.Spec.Files).
var fleetFiles = []string{"fleet", "fleet-creds", "fleet-ca", "fleet-cert", "fleet-key"}

func (ff *fleetFlags) add(f *pflag.FlagSet) {
	f.StringVar(&ff.URL, "fleet", "", "ask the daemons that 'guestprobed --fleet' has brought to this `URL`, instead of one on this machine")
	ff.Flags(f, "fleet-")
	f.StringVar(&ff.where, "where", "", "of the fleet, or of --all, only those whose labels meet these `CONDITIONS`, such as 'kernel=6.*,arch!=zen3'")
	f.IntVar(&ff.expect, "expect", 0, "wait for `N` daemons; fail after one minute")
	command.ShowOnlyIn("fleet", f, append([]string{"where", "expect"}, fleetFiles...)...)
}

// addAll declares --all for a command or for the whole program.
func (ff *fleetFlags) addAll(f *pflag.FlagSet) {
	f.BoolVar(&ff.all, "all", false, "ask all daemons on this machine that 'guestprobe ps' lists, instead of one (list, stat, trace, run)")
}

// Timeouts of a fleet.
const (
	quietTime  = 300 * time.Millisecond // the search ends when no further daemon answers for this long
	expectTime = time.Minute            // until --expect daemons have answered
	lookTime   = 3 * time.Second        // for a search without --expect
	fleetTime  = 30 * time.Second       // for a daemon to accept a connection
)

// errExpected reports that fewer daemons answered than --expect.
var errExpected = errors.New("daemons are missing")

// errNoMatch reports that no daemon of the fleet matches.
var errNoMatch = errors.New("no daemon of the fleet matches")

// errNoLocal reports that --all found no daemon that answers and matches.
var errNoLocal = errors.New("no daemon of this machine matches")

// errPartly reports that some of the daemons failed.
var errPartly = errors.New("not done by all daemons")

// check returns an error for flags that exclude each other.
func (ff *fleetFlags) check() (fleet.Where, error) {
	if ff.URL == "" {
		if ff.where != "" && !ff.all || ff.expect != 0 || ff.Creds != "" || ff.CA != "" || ff.Cert != "" || ff.Key != "" {
			return fleet.Where{}, command.Usagef("--where, --expect and --fleet-...: go with --fleet, --where also with --all")
		}
	} else if err := ff.Check(); err != nil {
		return fleet.Where{}, command.Usagef("--fleet: %w", err)
	}
	if ff.expect < 0 || ff.expect > fleet.MaxDaemons {
		return fleet.Where{}, command.Usagef("--expect %d: not 0 to %d", ff.expect, fleet.MaxDaemons)
	}
	w, err := fleet.ParseWhere(ff.where)
	if err != nil {
		return w, command.Usagef("--where: %w", err)
	}
	return w, nil
}

// find connects to the fleet and returns the matching daemons. The caller closes the network.
func (ff *fleetFlags) find(ctx context.Context) (*fleet.Network, []fleet.Daemon, error) {
	return ff.findWith(ctx, false)
}

// findWith is find; with state it also asks for the daemons' states.
func (ff *fleetFlags) findWith(ctx context.Context, state bool) (*fleet.Network, []fleet.Daemon, error) {
	w, err := ff.check()
	if err != nil {
		return nil, nil, err
	}
	n, err := fleet.Connect(ctx, ff.Address, "guestprobe", false, nil)
	if err != nil {
		return nil, nil, err
	}
	took := lookTime
	if ff.expect > 0 {
		took = expectTime
	}
	look, cancel := context.WithTimeout(ctx, took)
	defer cancel()
	ds, err := n.Find(look, fleet.Look{Where: w, Expect: ff.expect, Quiet: quietTime, State: state})
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil && len(ds) < ff.expect {
		err = fmt.Errorf("%w: %d of %d are there after %v", errExpected, len(ds), ff.expect, expectTime)
	}
	if err != nil {
		n.Close()
		return nil, nil, err
	}
	return n, ds, nil
}

// findOne returns a client of the only matching daemon.
func (ff *fleetFlags) findOne(ctx context.Context) (*remote.Client, error) {
	n, ds, err := ff.find(ctx)
	if err != nil {
		return nil, err
	}
	if len(ds) != 1 {
		n.Close()
		if len(ds) == 0 {
			return nil, errNoMatch
		}
		return nil, command.Usagef("%d daemons of the fleet match, such as %s and %s, but this command needs exactly one: use --where name=%[2]s", len(ds), ds[0].Name, ds[1].Name)
	}
	return dialDaemon(n, ds[0], 1, n.Close), nil
}

// dialDaemon returns a client of a daemon. of is the number of daemons that the command asks.
func dialDaemon(n *fleet.Network, d fleet.Daemon, of int, closed func()) *remote.Client {
	c := remote.NewWithDial(d.Name, func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, fleetTime, fmt.Errorf("not within %v", fleetTime))
		defer cancel()
		return n.Dial(ctx, d, maxInFlight/of)
	}, closed)
	return c.SetBounds(remote.Bounds{Answer: maxMemberAnswer, Line: maxMemberAnswer, Time: memberTime, All: membersRoom})
}

// Limits for a daemon of a fleet, which is not trusted.
const (
	// maxMemberAnswer is the maximum size of an answer or a record, in bytes: enough for a list of 100,000 probes.
	maxMemberAnswer = 64 << 20
	// maxAnswers is the maximum total size of a command's answers and of the long records that it reads at the same time.
	maxAnswers = 512 << 20
	// memberTime is how long an answer may take, except a stream.
	memberTime = 5 * time.Minute
)

// membersRoom is shared by all daemons of a command.
var membersRoom = remote.NewRoom(maxAnswers)

// maxInFlight bounds how much data of all daemons together is in flight to this client, in bytes. A server drops a client
// that leaves 64 MiB unread.
const maxInFlight = 16 << 20

// member is a daemon and its client.
type member struct {
	fleet.Daemon
	*remote.Client
}

// members are the daemons of a command: one daemon, or several of a fleet or of this machine.
type members struct {
	// alone is true for a single daemon. Commands print its answers without its name.
	alone bool

	n       *fleet.Network // nil: the daemons are on this machine
	where   fleet.Where
	all     []member
	late    []member  // daemons that joined later
	missing []failure // daemons that exist but do not answer
}

// members returns the matching daemons, or errNoMatch if no daemon matches.
func (ff *fleetFlags) members(ctx context.Context) (*members, error) {
	m, err := ff.findMembers(ctx)
	if err == nil && len(m.all) == 0 {
		m.close()
		return nil, errNoMatch
	}
	return m, err
}

// findMembers returns the matching daemons, possibly none.
func (ff *fleetFlags) findMembers(ctx context.Context) (*members, error) {
	n, ds, err := ff.find(ctx)
	if err != nil {
		return nil, err
	}
	m := &members{n: n}
	m.where, _ = fleet.ParseWhere(ff.where) // find has checked it
	for _, d := range ds {
		m.all = append(m.all, member{d, dialDaemon(n, d, len(ds), func() {})})
	}
	return m, nil
}

// requireOne returns the only matching daemon, for requests that cannot go to several. The caller still closes m.
func (m *members) requireOne(what string) (*members, error) {
	if len(m.all) != 1 || len(m.missing) > 0 {
		return nil, command.Usagef("%s: these are for one daemon, but %d match: use --where name=NAME", what, len(m.all)+len(m.missing))
	}
	one := *m
	one.alone = true
	return &one, nil
}

func (m *members) close() {
	for _, c := range append(m.all, m.late...) {
		c.Client.Close()
	}
	if m.n != nil {
		m.n.Close()
	}
}

// crowd runs one function for each daemon, and is finished when all of them have returned.
type crowd struct {
	mu     sync.Mutex
	going  int
	closed bool
	idle   chan struct{}
}

// add starts f, unless the crowd is finished, and reports whether it did.
func (c *crowd) add(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.going++
	go func() {
		defer c.leave()
		f()
	}()
	return true
}

func (c *crowd) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.going--; c.going == 0 {
		c.closed = true
		close(c.idle)
	}
}

// forEachDaemon calls begin for each daemon in turn, then runs the functions that begin returned concurrently. Each of them
// calls started once its work has begun; a return counts as well. When all have started, forEachDaemon calls begun. With later it
// does the same for daemons that join until ctx ends or all functions have returned.
func (m *members) forEachDaemon(ctx context.Context, later bool, begun func(), begin func(c member) func(started func())) error {
	all := &crowd{going: 1, idle: make(chan struct{})} // counts forEachDaemon itself until the first functions have started
	var starting sync.WaitGroup
	run := func(f func(started func())) {
		starting.Add(1)
		started := sync.OnceFunc(starting.Done)
		if !all.add(func() {
			defer started()
			f(started)
		}) {
			started()
		}
	}
	var first []func(func())
	for _, c := range m.all {
		first = append(first, begin(c))
	}
	for _, f := range first {
		run(f)
	}
	starting.Wait()
	begun()
	if !later || m.n == nil || m.alone {
		all.leave()
		<-all.idle
		return nil
	}
	late, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		known := make([]fleet.Daemon, len(m.all))
		for i, c := range m.all {
			known[i] = c.Daemon
		}
		failed <- m.n.Arrivals(late, fleet.Look{Where: m.where, Quiet: quietTime}, known, func(d fleet.Daemon) {
			c := member{d, dialDaemon(m.n, d, len(m.all), func() {})}
			m.late = append(m.late, c)
			run(begin(c))
		})
	}()
	all.leave()
	<-all.idle
	cancel()
	return <-failed
}

// askAll returns a command that calls f with the selected daemons: one, or any number with --fleet or --all.
func (a *app) askAll(f func(context.Context, *command.Run, *members) error) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		ask := a.members
		if a.fleet.all {
			ask = a.localMembers
		}
		m, err := ask(ctx, r)
		if err != nil {
			return err
		}
		defer m.close()
		if err := f(ctx, r, m); err != nil || len(m.missing) == 0 {
			return err
		}
		return failures(r, append(make([]failure, len(m.all)), m.missing...))
	}
}

// askFleet is askAll for commands without --all.
func (a *app) askFleet(f func(context.Context, *command.Run, *members) error) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		m, err := a.members(ctx, r)
		if err != nil {
			return err
		}
		defer m.close()
		return f(ctx, r, m)
	}
}

// members returns the selected daemon, or the daemons of --fleet. Finding none is an error.
func (a *app) members(ctx context.Context, r *command.Run) (*members, error) {
	if a.fleet.URL == "" {
		return a.dialOne(ctx, r)
	}
	return a.fleet.members(ctx)
}

// dialOne connects to the selected daemon.
func (a *app) dialOne(ctx context.Context, r *command.Run) (*members, error) {
	c, err := a.client(ctx, r.Getenv, r.Stderr)
	if err != nil {
		return nil, err
	}
	if err := checkAnswering(ctx, r.Getenv, c); err != nil {
		c.Close()
		return nil, err
	}
	return newAlone(c), nil
}

// newAlone returns members with a single daemon.
func newAlone(c *remote.Client) *members { return &members{alone: true, all: []member{{Client: c}}} }

// maxAsked is how many daemons are asked concurrently.
const maxAsked = 64

// answer is a daemon's answer, in its JSON form.
type answer[T any] struct {
	Daemon string     `json:"daemon"`
	Answer *T         `json:"answer,omitempty"`
	Error  *api.Error `json:"error,omitempty"`

	err error
}

// answersOf are the answers of several daemons, or of a single one.
type answersOf[T any] struct {
	Daemons []answer[T] `json:"daemons"`

	alone bool
}

// json returns the value for --format json: a single daemon's answer as it is, the answers of several with the daemons' names.
func (o answersOf[T]) json() any {
	if o.alone {
		return o.Daemons[0].Answer
	}
	return o
}

// gather asks all daemons and returns their answers in the order of the daemons.
func gather[T any](ctx context.Context, m *members, ask func(context.Context, *remote.Client) (T, error)) answersOf[T] {
	out := answersOf[T]{Daemons: make([]answer[T], len(m.all)), alone: m.alone}
	room := make(chan struct{}, maxAsked)
	var wg sync.WaitGroup
	for i, c := range m.all {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			a := &out.Daemons[i]
			a.Daemon = c.Name
			if v, err := ask(ctx, c.Client); err != nil {
				a.err, a.Error = err, wireError(err)
			} else {
				a.Answer = &v
			}
		})
	}
	wg.Wait()
	return out
}

// prefix returns the prefix of a note about a daemon: its name, or "" for a single daemon.
func (m *members) prefix(daemon string) string {
	if m.alone {
		return ""
	}
	return command.Line(daemon) + ": "
}

// askEach asks all daemons and prints their answers. If a single daemon fails it returns the error and prints nothing.
func askEach[T any](ctx context.Context, r *command.Run, m *members, ask func(context.Context, *remote.Client) (T, error), print func(answersOf[T]) error) error {
	o := gather(ctx, m, ask)
	if o.alone && o.Daemons[0].err != nil {
		return o.Daemons[0].err
	}
	if err := print(o); err != nil {
		return err
	}
	return o.verdict(r)
}

// wireError converts an error to its JSON form.
func wireError(err error) *api.Error {
	var wire *api.Error
	if errors.As(err, &wire) {
		return wire
	}
	code := judge(err).Code
	if code == "" {
		code = "failed"
	}
	return &api.Error{Code: code, Message: err.Error()}
}

// verdict prints a note for each daemon that failed, and returns an error if any did.
func (o answersOf[T]) verdict(r *command.Run) error {
	if o.alone {
		return o.Daemons[0].err
	}
	var fs []failure
	for _, a := range o.Daemons {
		fs = append(fs, failure{a.Daemon, a.err})
	}
	return failures(r, fs)
}

// failure is the result of one daemon; err is nil if it succeeded.
type failure struct {
	daemon string
	err    error
}

// memberError is a daemon's error, with the daemon's name before each line so that its text cannot pass for another daemon's.
type memberError struct {
	daemon string
	err    error
}

// Error implements error.
func (e *memberError) Error() string { return prefixLines(e.daemon, e.err.Error()) }

// Unwrap returns the daemon's error.
func (e *memberError) Unwrap() error { return e.err }

// prefixLines puts a daemon's name before each line of a text.
func prefixLines(daemon, text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return daemon + ": " + strings.Join(lines, "\n"+daemon+": ")
}

// noteOf prints a daemon's message as a note.
func noteOf(r *command.Run, daemon, text string) {
	r.Note("%s", command.Clean(prefixLines(command.Line(daemon), text)))
}

// failures prints a note for each daemon that failed. If all failed it returns the first error, if some did, errPartly.
func failures(r *command.Run, fs []failure) error {
	failed := 0
	var first error
	for _, f := range fs {
		if f.err == nil {
			continue
		}
		if failed++; first == nil {
			first = &memberError{f.daemon, f.err}
		}
		noteOf(r, f.daemon, f.err.Error())
	}
	switch {
	case failed == 0:
		return nil
	case failed == len(fs):
		return first
	}
	return fmt.Errorf("%w: %d of %d have failed", errPartly, failed, len(fs))
}
