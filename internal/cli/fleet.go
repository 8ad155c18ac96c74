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

// fleetFlags say which daemons of a fleet are meant.
type fleetFlags struct {
	fleet.Address
	where  string
	expect int
	all    bool // those of this machine, instead of a fleet
}

// fleetFiles are those of the flags that are not for whom somebody else's process asks.
var fleetFiles = []string{"fleet", "fleet-creds", "fleet-ca", "fleet-cert", "fleet-key"}

func (ff *fleetFlags) add(f *pflag.FlagSet) {
	f.StringVar(&ff.URL, "fleet", "", "ask the daemons that 'guestprobed --fleet' has brought to this `URL`, instead of one on this machine")
	ff.Flags(f, "fleet-")
	f.StringVar(&ff.where, "where", "", "of the fleet, or of --all, only those whose labels meet these `CONDITIONS`, as 'kernel=6.*,arch!=zen3'")
	f.IntVar(&ff.expect, "expect", 0, "wait until so `many` daemons are there, and fail if they do not come within a minute")
}

// addAll declares --all of a command, or of the program before it.
func (ff *fleetFlags) addAll(f *pflag.FlagSet) {
	f.BoolVar(&ff.all, "all", false, "ask all daemons on this machine that 'guestprobe ps' lists, instead of one (list, stat, trace, run)")
}

// Times of a fleet.
const (
	quietTime  = 300 * time.Millisecond // no further daemon has answered for so long: these are all
	expectTime = time.Minute            // for those that are expected
	lookTime   = 3 * time.Second        // for those of which nobody knows how many they are
	fleetTime  = 30 * time.Second       // for each to take a connection
)

// errExpected is for a fleet that has fewer daemons than were expected.
var errExpected = errors.New("daemons are missing")

// errNobody is for a fleet in which no daemon is meant.
var errNobody = errors.New("no daemon of the fleet is meant")

// errNoLocal is for --all where no daemon answers that is meant.
var errNoLocal = errors.New("no daemon of this machine is meant")

// errPartly is for what some daemons of a fleet have not done.
var errPartly = errors.New("not done by all daemons")

// check refuses what does not go together.
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

// find connects to the fleet and returns the daemons that are meant. Close of the network is the caller's.
func (ff *fleetFlags) find(ctx context.Context) (*fleet.Network, []fleet.Daemon, error) {
	return ff.findWith(ctx, false)
}

// findWith is find, and asks for the daemons' states if state says so.
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

// one returns a client of the only daemon that is meant.
func (ff *fleetFlags) one(ctx context.Context) (*remote.Client, error) {
	n, ds, err := ff.find(ctx)
	if err != nil {
		return nil, err
	}
	if len(ds) != 1 {
		n.Close()
		if len(ds) == 0 {
			return nil, errNobody
		}
		return nil, command.Usagef("%d daemons of the fleet are meant, as %s and %s, and this is for one: say --where name=%[2]s", len(ds), ds[0].Name, ds[1].Name)
	}
	return dialed(n, ds[0], 1, n.Close), nil
}

// dialed returns a client of a daemon, one of so many.
func dialed(n *fleet.Network, d fleet.Daemon, of int, closed func()) *remote.Client {
	c := remote.Of(d.Name, func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, fleetTime, fmt.Errorf("not within %v", fleetTime))
		defer cancel()
		return n.Dial(ctx, d, maxInFlight/of)
	}, closed)
	return c.Bound(remote.Bounds{Answer: maxMemberAnswer, Line: maxMemberAnswer, Time: memberTime, All: membersRoom})
}

// Bounds of what a daemon of a fleet may cost: it is not trusted to be what it says.
const (
	// maxMemberAnswer bounds an answer or a record, in bytes: a list of 100,000 probes fits.
	maxMemberAnswer = 64 << 20
	// maxAnswers bounds all answers of a command together, and the long records that are read at a time.
	maxAnswers = 512 << 20
	// memberTime is how long an answer that is not a stream may take.
	memberTime = 5 * time.Minute
)

// membersRoom is shared by all daemons that a command asks.
var membersRoom = remote.NewRoom(maxAnswers)

// maxInFlight bounds what of all daemons is on its way here, in bytes: a server drops a client that does not read
// 64 MiB.
const maxInFlight = 16 << 20

// member is a daemon of the fleet.
type member struct {
	fleet.Daemon
	*remote.Client
}

// members are the daemons that a command is for: one, or several of a fleet or of this machine.
type members struct {
	// alone: it is one daemon, which is not named in the output: commands print its answers as they are.
	alone bool

	n       *fleet.Network // nil: they are on this machine
	where   fleet.Where
	all     []member
	late    []member  // that have come meanwhile
	missing []failure // those that are there and of which nothing can be asked
}

// members finds those that are meant; none is an error.
func (ff *fleetFlags) members(ctx context.Context) (*members, error) {
	m, err := ff.anyMembers(ctx)
	if err == nil && len(m.all) == 0 {
		m.close()
		return nil, errNobody
	}
	return m, err
}

// anyMembers finds those that are meant, if any.
func (ff *fleetFlags) anyMembers(ctx context.Context) (*members, error) {
	n, ds, err := ff.find(ctx)
	if err != nil {
		return nil, err
	}
	m := &members{n: n}
	m.where, _ = fleet.ParseWhere(ff.where) // find has read it
	for _, d := range ds {
		m.all = append(m.all, member{d, dialed(n, d, len(ds), func() {})})
	}
	return m, nil
}

// only returns the one daemon that is meant, alone, for what cannot be asked of several. The members are still the caller's to close.
func (m *members) only(what string) (*members, error) {
	if len(m.all) != 1 || len(m.missing) > 0 {
		return nil, command.Usagef("%s: of one daemon, and %d are meant: say --where name=NAME", what, len(m.all)+len(m.missing))
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

// crowd is something that goes on in all daemons, until it has ended in all of them.
type crowd struct {
	mu     sync.Mutex
	going  int
	closed bool
	idle   chan struct{}
}

// add begins it in one more, unless it has ended in all, and reports whether it did.
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

// everyone calls begin for each daemon, one after the other, and what it returns for all of them at once, with what is to be called
// when it has begun there or never will; with later also for those that come until ctx ends or all have returned. Begun is called
// when the first ones have begun.
func (m *members) everyone(ctx context.Context, later bool, begun func(), begin func(c member) func(started func())) error {
	all := &crowd{going: 1, idle: make(chan struct{})} // ourselves, until the first ones have begun
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
			c := member{d, dialed(m.n, d, len(m.all), func() {})}
			m.late = append(m.late, c)
			run(begin(c))
		})
	}()
	all.leave()
	<-all.idle
	cancel()
	return <-failed
}

// askAll runs f for the daemons that the user means: one, or with --fleet or --all any number.
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

// askFleet is askAll for commands that do not know --all.
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

// members returns the one daemon that the user means, or the daemons of --fleet; it is an error if there are none.
func (a *app) members(ctx context.Context, r *command.Run) (*members, error) {
	if a.fleet.URL == "" {
		return a.alone(ctx, r)
	}
	return a.fleet.members(ctx)
}

// alone returns the one daemon that the user means.
func (a *app) alone(ctx context.Context, r *command.Run) (*members, error) {
	c, err := a.client(ctx, r.Getenv, r.Stderr)
	if err != nil {
		return nil, err
	}
	if err := answers(ctx, r.Getenv, c); err != nil {
		c.Close()
		return nil, err
	}
	return aloneOf(c), nil
}

// aloneOf are members of which there is one, alone.
func aloneOf(c *remote.Client) *members { return &members{alone: true, all: []member{{Client: c}}} }

// maxAsked bounds how many daemons are asked at a time.
const maxAsked = 64

// answer is what a daemon has answered, as JSON has it.
type answer[T any] struct {
	Daemon string     `json:"daemon"`
	Answer *T         `json:"answer,omitempty"`
	Error  *api.Error `json:"error,omitempty"`

	err error
}

// answersOf is what several have answered, or one alone.
type answersOf[T any] struct {
	Daemons []answer[T] `json:"daemons"`

	alone bool
}

// json is what --format json has of them: the answer of one alone, of several all with their names.
func (o answersOf[T]) json() any {
	if o.alone {
		return o.Daemons[0].Answer
	}
	return o
}

// gather asks all daemons, and returns their answers in the order of their names.
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
				a.err, a.Error = err, onWire(err)
			} else {
				a.Answer = &v
			}
		})
	}
	wg.Wait()
	return out
}

// before returns the beginning of a remark about a daemon: its name, unless it is alone.
func (m *members) before(daemon string) string {
	if m.alone {
		return ""
	}
	return command.Line(daemon) + ": "
}

// each asks all daemons and prints their answers. One alone that fails has nothing to print.
func each[T any](ctx context.Context, r *command.Run, m *members, ask func(context.Context, *remote.Client) (T, error), print func(answersOf[T]) error) error {
	o := gather(ctx, m, ask)
	if o.alone && o.Daemons[0].err != nil {
		return o.Daemons[0].err
	}
	if err := print(o); err != nil {
		return err
	}
	return o.verdict(r)
}

// onWire is an error as JSON has it.
func onWire(err error) *api.Error {
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

// verdict notes what daemons have not answered, and says whether that is a failure.
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

// failure is what has become of a daemon; err may be nil.
type failure struct {
	daemon string
	err    error
}

// memberError is an error of a daemon, each of whose lines has the daemon's name: no daemon's text can pass for another one's.
type memberError struct {
	daemon string
	err    error
}

// Error implements error.
func (e *memberError) Error() string { return prefixed(e.daemon, e.err.Error()) }

// Unwrap returns the daemon's error.
func (e *memberError) Unwrap() error { return e.err }

// prefixed is a text with a daemon's name before each of its lines.
func prefixed(daemon, text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return daemon + ": " + strings.Join(lines, "\n"+daemon+": ")
}

// noteOf notes what a daemon says.
func noteOf(r *command.Run, daemon, text string) {
	r.Note("%s", command.Clean(prefixed(command.Line(daemon), text)))
}

// failures notes what daemons have not done, and says whether that is a failure: one of all is the first one's.
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
