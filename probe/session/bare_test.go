package session_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// bare is a Session on the built-in guest's image in plain memory: a test makes the hits.
type bare struct {
	*testing.T
	*probetest.Fake
	img       *guest.Image
	s         *session.Session
	onModules func()
}

// OnModules implements the part of a session.Guest that a kernel with modules has.
func (b *bare) OnModules(f func()) { b.onModules = f }

func newBare(t *testing.T) *bare {
	t.Helper()
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	return newBareOf(t, img, nil)
}

func newBareOf(t *testing.T, img *guest.Image, view func() guest.View) *bare {
	t.Helper()
	return newBareWith(t, img, view, session.Options{})
}

func newBareWith(t *testing.T, img *guest.Image, view func() guest.View, o session.Options) *bare {
	t.Helper()
	b := &bare{T: t, img: img}
	var err error
	if b.Fake, err = probetest.NewFake(probetest.FakeOptions{Image: img, CPUs: 2, Still: true, Bare: true, View: view, Probe: probe.Options{OptimizeDelay: -1}}); err != nil {
		t.Fatal(err)
	}
	b.s = session.New(b, o)
	t.Cleanup(func() {
		if err := errors.Join(b.s.Close(), b.Engine().Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// attach attaches definitions.
func (b *bare) attach(defs ...string) []session.Info {
	b.Helper()
	a, err := b.apply(defs...)
	if err != nil {
		b.Fatal(err)
	}
	return b.s.Describe(a.Probes)
}

// apply carries out commands.
func (b *bare) apply(commands ...string) (session.Attached, error) {
	specs := make([]session.Spec, len(commands))
	for i, c := range commands {
		specs[i].Def = c
	}
	return b.s.Attach(specs, nil)
}

// checkRefused wants an error with a code.
func (b *bare) checkRefused(err error, code session.Code) *session.Error {
	b.Helper()
	e := session.ErrorOf(err)
	if e.Code != code {
		b.Errorf("%v: want code %s", err, code)
	}
	return e
}

// builtinWith returns the built-in guest's image with other names of symbols, each as long as the one before.
func builtinWith(t *testing.T, names ...string) *guest.Image {
	t.Helper()
	elf := builtin.ELF()
	for i := 0; i+1 < len(names); i += 2 {
		elf = bytes.ReplaceAll(elf, []byte("\x00"+names[i]+"\x00"), []byte("\x00"+names[i+1]+"\x00"))
	}
	img, err := guest.ParseELF(elf)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// defs returns the definitions that are attached, by number.
func (b *bare) defs() (out []string) {
	for i := range b.s.Infos(b.s.Probes()) {
		out = append(out, i.Spec.Def)
	}
	return out
}

// hit lets a vCPU arrive at a symbol, where a probe must be.
func (b *bare) hit(cpu int, symbol string, offset uint64, set func(*probe.Regs)) {
	b.Helper()
	if ok, err := b.Hit(cpu, symbol, offset, set); err != nil || !ok {
		b.Fatalf("%s+%#x: hit %v, %v", symbol, offset, ok, err)
	}
}

// clean detaches everything, and wants the text to be what it was.
func (b *bare) clean() {
	b.Helper()
	if _, err := b.s.Detach(); err != nil {
		b.Error(err)
	}
	for _, user := range []bool{false, true} {
		for _, r := range b.img.Text(user) {
			if text, err := b.BytesAt(r.Start, int(r.End-r.Start)); err != nil || string(text) != string(b.img.Code(r.Start, len(text))) {
				b.Errorf("the text at %v is not what it was: %v", r.Start, err)
			}
		}
	}
}

// next returns the next event, and its record as text.
func (b *bare) next(sub *session.Subscription) (event.Event, *event.Record, string) {
	b.Helper()
	ev, err := sub.Next(patience.Context(b))
	if err != nil {
		b.Fatal(err)
	}
	rec, err := ev.Decode()
	if err != nil {
		b.Fatal(err)
	}
	return ev, rec, string(ev.Source.Layout.AppendArgs(nil, rec))
}

// TestListsOfCommands: each row is carried out as a whole, or refused with nothing
// changed.
func TestListsOfCommands(t *testing.T) {
	for _, tc := range []struct {
		name     string
		commands []string
		want     []string // definitions; of a refusal those before
		refused  string   // the reason by its kernel's name, and the command's index
	}{
		{"nothing", []string{"# a comment", " \t"}, nil, ""},
		{"one event of several probes", []string{"p:e vfs_read a=%di", "p:e do_fork a=%si", "p:e do_fork a=%di"},
			[]string{"p:kprobes/e vfs_read a=%di", "p:kprobes/e do_fork a=%si", "p:kprobes/e do_fork a=%di"}, ""},
		{"same again", []string{"p:e vfs_read a=%di", "p:e vfs_read b=%di"}, nil, "DIFF_ARG_TYPE 1"},
		{"same name of an argument", []string{"p:e vfs_read %di", "p:e vfs_read arg1=%di"}, nil, "SAME_PROBE 1"},
		{"another kind", []string{"p:e vfs_read", "r:e do_fork"}, nil, "DIFF_PROBE_TYPE 1"},
		{"a watch and another length", []string{"w:e w@vfs_bytes_read:4", "w:e w@vfs_bytes_read:4"}, nil, "SAME_PROBE 1"},
		{"deleted at once", []string{"p:e vfs_read", "-:e"}, nil, ""},
		{"replaced", []string{"p:e vfs_read %di", "-:e", "r:e vfs_read $retval"}, []string{"r:kprobes/e vfs_read arg1=$retval"}, ""},
		{"one of two places", []string{"p:e vfs_read", "p:e do_fork", "-:e vfs_read"}, []string{"p:kprobes/e do_fork"}, ""},
		{"by arguments", []string{"p:e vfs_read %di %si", "-:e vfs_read arg1=%di arg2=%di"}, nil, "NO_EVENT 1"},
		{"a group", []string{"p:g/a vfs_read", "p:g/b do_fork", "p:h/a do_fork", "-:g/"}, []string{"p:h/a do_fork"}, ""},
		{"any group", []string{"p:g/a vfs_read", "p:h/a do_fork", "-:a"}, nil, ""},
		{"by its listing", []string{"p:g/a vfs_read x=%di", "!p:g/a vfs_read x=%di"}, nil, ""},
		{"deleted twice", []string{"p:e vfs_read", "-:e", "-:e"}, nil, "NO_EVENT 2"},
		{"the engine refuses the last", []string{"p:e vfs_read", "-:kept", "p:f vfs_read+1"}, nil, "BAD_INSN_BNDRY 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBare(t)
			b.attach("p:kept schedule")
			want := append([]string{"p:kprobes/kept schedule"}, tc.want...)
			list, err := b.apply(tc.commands...)
			got := ""
			if err != nil {
				e := session.ErrorOf(err)
				got = fmt.Sprintf("%s %d", e.Syntax, *e.Index)
			}
			if got != tc.refused {
				t.Errorf("refused with %q (%v), want %q", got, err, tc.refused)
			}
			if d := cmp.Diff(want, b.defs()); d != "" {
				t.Errorf("definitions (-want +got):\n%s", d)
			}
			if len(list.Probes) != len(tc.want) {
				t.Errorf("the answer has %d probes, want %d", len(list.Probes), len(tc.want))
			}
			b.clean()
			if n := session.CountLeft(b.s); n != 0 {
				t.Errorf("%d names and events are left", n)
			}
		})
	}
}

// TestCheck: Check rejects the same as Attach, with the same texts, and has no
// lasting effect.
func TestCheck(t *testing.T) {
	for _, spec := range []session.Spec{
		{Def: "p:a vfs_read a=%di"}, {Def: "p:a vfs_*"}, {Def: "p:a nowhere"}, {Def: "p:a vfs_read+1"}, {Def: "p:a blacklisted_fn"}, {Def: "p:kept do_fork x=%di"},
		{Def: "r:a vfs_read $retval"}, {Def: "r:a vfs_read+4"}, {Def: "r:a vfs_read", AtRets: true}, {Def: "p:a vfs_read", Args: 2}, {Def: "p:a vfs_read", Filter: "x > 1"},
		{Def: "w:a w@vfs_bytes_read:8"}, {Def: "w:a w@vfs_bytes_read:3"}, {Def: "w:a r@vfs_bytes_read"}, {Def: "w:a w@nowhere"}, {Def: "w:a x@vfs_read", Emulate: true},
		{Def: "w:a w@vfs_bytes_read:8", Emulate: true}, {Def: "w:a w@vfs_bytes_read", Post: true}, {Def: "-:kept"}, {Def: "-:nope"}, {Def: ""}, {Def: "q"},
	} {
		b := newBare(t)
		b.attach("p:kept schedule")
		n, check := b.s.Check(spec)
		if d := cmp.Diff([]string{"p:kprobes/kept schedule"}, b.defs()); d != "" {
			t.Errorf("%+v: after the check (-want +got):\n%s", spec, d)
		}
		list, err := b.s.Attach([]session.Spec{spec}, nil)
		text := func(err error) string {
			if err == nil {
				return ""
			}
			e := session.ErrorOf(err)
			return fmt.Sprintf("%s %s %s: %s (%s)", e.Code, e.Errno, e.Syntax, e.Text, e.Detail)
		}
		if text(check) != text(err) || n != len(list.Probes) {
			t.Errorf("%+v: checked %d, %v; attached %d, %v", spec, n, check, len(list.Probes), err)
		}
		b.clean()
	}
}

// TestDeletionTellsFinalCounts: the answer has what a deletion has taken away.
func TestDeletionTellsFinalCounts(t *testing.T) {
	b := newBare(t)
	p := b.attach("p:old schedule")[0]
	b.hit(0, "schedule", p.Offset, nil)
	list, err := b.apply("-:old", "p:old schedule", "p:new do_fork")
	if err != nil || len(list.Detached) != 1 || list.Detached[0].ID != p.ID || list.Detached[0].Stats.Hits != 1 || len(list.Probes) != 2 || list.Probes[0].ID() != p.ID+1 {
		t.Errorf("%+v, %v", list, err)
	}
	if got, err := b.s.Get("old"); err != nil || got.ID != p.ID+1 {
		t.Errorf("old: %+v, %v", got, err)
	}
}

// TestChoice: names, groups and patterns mean the same wherever they are taken.
func TestChoice(t *testing.T) {
	b := newBare(t)
	b.attach("p:io/read vfs_read", "p:io/write vfs_write", "p:io/write do_fork", "p:sched/read schedule", "p do_exit")
	all := []uint64{1, 2, 3, 4, 5}
	for _, tc := range []struct {
		names string
		want  []uint64
		code  session.Code
	}{
		{"", all, ""},
		{"1", []uint64{1}, ""},
		{"write", []uint64{2, 3}, ""},
		{"io/write 3 2", []uint64{2, 3}, ""},
		{"io/", []uint64{1, 2, 3}, ""},
		{"io/*", []uint64{1, 2, 3}, ""},
		{"r*", []uint64{1, 4}, ""},
		{"*/rea[d]", []uint64{1, 4}, ""},
		{"*", all, ""},
		{"p_do_exit_? sched/", []uint64{4, 5}, ""},
		{"read", nil, session.CodeAmbiguousName},
		{"io/ nope", nil, session.CodeProbeNotFound},
		{"nope/", nil, session.CodeProbeNotFound},
		{"io/ x*", nil, session.CodeProbeNotFound},
		{"6", nil, session.CodeProbeNotFound},
		{"[", nil, session.CodeBadValue},
	} {
		names := strings.Fields(tc.names)
		code := func(err error) session.Code {
			if err == nil {
				return ""
			}
			return session.ErrorOf(err).Code
		}
		var listed, disabled []uint64
		ps, err := b.s.Choose(names...)
		for _, p := range ps {
			listed = append(listed, p.ID())
		}
		if !slices.Equal(listed, tc.want) || code(err) != tc.code {
			t.Errorf("%q: chosen %v %v, want %v %q", tc.names, listed, err, tc.want, tc.code)
		}
		is, err := b.s.SetEnabled(false, names...)
		for _, i := range is {
			disabled = append(disabled, i.ID)
		}
		if !slices.Equal(disabled, tc.want) || code(err) != tc.code {
			t.Errorf("%q: disabled %v %v, want %v %q", tc.names, disabled, err, tc.want, tc.code)
		}
		for i := range b.s.Infos(b.s.Probes()) {
			if i.Enabled == slices.Contains(tc.want, i.ID) {
				t.Errorf("%q: probe %d is enabled: %v", tc.names, i.ID, i.Enabled)
			}
		}
		if _, err := b.s.SetEnabled(true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPatternsForPlaces: each function that matches a pattern either has a probe or
// is reported.
func TestPatternsForPlaces(t *testing.T) {
	for _, tc := range []struct {
		def  string
		want []string // definitions
		skip []string // definitions and reasons
		err  string   // the reason of a refusal
	}{
		{"p vfs_*", []string{"p:kprobes/p_vfs_read_0 vfs_read", "p:kprobes/p_vfs_write_0 vfs_write"}, nil, ""},
		{"r:io/* vfs_* $retval", []string{"r:io/vfs_read vfs_read arg1=$retval", "r:io/vfs_write vfs_write arg1=$retval"}, nil, ""},
		{"p:io/in_* vfs_[r]* fd=%di", []string{"p:io/in_vfs_read vfs_read fd=%di"}, nil, ""},
		{"p:io/e vfs_*%return", []string{"r:io/e vfs_read", "r:io/e vfs_write"}, nil, ""},
		{"r4:io/ vfs_w*", []string{"r4:io/r_vfs_write_0 vfs_write"}, nil, ""},
		{"p:e vfs_*+4 a=%di", []string{"p:kprobes/e vfs_read+4 a=%di", "p:kprobes/e vfs_write+4 a=%di"}, nil, ""},
		{"p:e vfs_*+1", nil, nil, "BAD_INSN_BNDRY"},
		{"p:* blacklisted_*", nil, nil, "FAIL_REG_PROBE"},
		{"p:b/* [bv][lf][as]*", []string{"p:b/vfs_read vfs_read", "p:b/vfs_write vfs_write"}, []string{"p:b/blacklisted_fn blacklisted_fn FAIL_REG_PROBE"}, ""},
		{"p nothing_like_it*", nil, nil, "BAD_PROBE_ADDR"},
		{"p vfs_* %nope", nil, nil, "BAD_REG_NAME"},
		{"p vfs_[", nil, nil, "BAD_PROBE_ADDR"},
		{"w w@vfs_*", nil, nil, "BAD_PROBE_ADDR"},
		{"p:a* vfs_read", nil, nil, "BAD_EVENT_NAME"},
	} {
		t.Run(tc.def, func(t *testing.T) {
			b := newBare(t)
			list, err := b.apply(tc.def)
			got := ""
			if err != nil {
				got = session.ErrorOf(err).Syntax
			}
			if got != tc.err {
				t.Errorf("refused with %v, want %q", err, tc.err)
			}
			var skipped []string
			for _, s := range list.Skipped {
				skipped = append(skipped, s.Def+" "+s.Err.Syntax)
			}
			if d := cmp.Diff(tc.want, b.defs()); d != "" {
				t.Errorf("definitions (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.skip, skipped); d != "" {
				t.Errorf("skipped (-want +got):\n%s", d)
			}
			b.clean()
			if tc.skip == nil {
				return
			}
			if list, err := b.s.Attach([]session.Spec{{Def: tc.def, Strict: true}}, nil); err == nil {
				t.Errorf("strict: attached %+v", list.Probes)
			}
			b.clean()
		})
	}
}

// TestFilter wants filters to decide on hits, each in its count.
func TestFilter(t *testing.T) {
	b := newBare(t)
	sub := b.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	a, err := b.s.Attach([]session.Spec{
		{Def: "p:a do_fork flags=%di", Filter: "flags > 10"}, {Def: "p:b do_fork flags=%di", Filter: "!(flags > 10) || cpu == 0"}, {Def: "p:c do_fork"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range []uint64{10, 11} {
		b.hit(1-i, "do_fork", b.s.Describe(a.Probes)[0].Offset, func(r *probe.Regs) { r.RDI = n })
	}
	for _, want := range []string{"c 1", "b 1", "c 0", "b 0", "a 0"} {
		ev, _, _ := b.next(sub)
		if got := fmt.Sprint(strings.TrimPrefix(session.ProbeOf(ev).Name(), "kprobes/"), " ", ev.CPU); got != want {
			t.Errorf("hit %s, want %s", got, want)
		}
	}
	for name, want := range map[string]probe.Stats{"a": {Hits: 2, Handled: 1, Filtered: 1}, "b": {Hits: 2, Handled: 2}, "c": {Hits: 2, Handled: 2}} {
		if i, err := b.s.Get(name); err != nil || i.Stats.Stats != want || i.Stats.Events != want.Handled {
			t.Errorf("%s: %+v, %v, want %+v", name, i.Stats, err, want)
		}
	}
	_, err = b.s.Attach([]session.Spec{{Def: "p:x do_fork"}, {Def: "p:y do_fork", Filter: "nope == 1"}}, nil)
	if e := session.ErrorOf(err); e.Code != session.CodeBadDefinition || e.Syntax != "FIELD_NOT_FOUND" || e.Column == nil || *e.Column != 0 ||
		e.Command != "nope == 1" || e.Index == nil || *e.Index != 1 {
		t.Errorf("unknown field: %+v", err)
	}
}

// TestProgramsShareMaps wants the maps of an object to live as long as one of
// its probes.
func TestProgramsShareMaps(t *testing.T) {
	b := newBare(t)
	file, err := os.ReadFile("../bpf/testdata/obj/latency.o")
	if err != nil {
		t.Fatal(err)
	}
	a, err := b.s.AttachObject(session.ObjectSpec{File: file, Disabled: true})
	if err != nil {
		t.Fatal(err)
	}
	if is := b.s.Describe(a.Probes); len(is) != 2 || is[0].Enabled || is[1].Kind != 'r' || is[1].OnHost != "this guest has no memory that host and guest share" {
		t.Fatalf("%+v", is)
	}
	if ms := b.s.Maps(); len(ms) != 2 || ms[1].Name != "started" || fmt.Sprint(ms[1].Probes) != "[bpf/enter bpf/leave]" || !ms[0].Hist {
		t.Errorf("maps %+v", ms)
	}
	if _, err := b.s.Detach("enter"); err != nil {
		t.Fatal(err)
	}
	if ms := b.s.Maps(); len(ms) != 2 || fmt.Sprint(ms[1].Probes) != "[bpf/leave]" {
		t.Errorf("maps %+v", ms)
	}
	if _, err := b.s.Detach("leave"); err != nil || len(b.s.Maps()) != 0 {
		t.Errorf("maps after the end: %+v, %v", b.s.Maps(), err)
	}
}

// TestFunctionLeftOutWhole: where one of a function's exits cannot be probed a pattern
// leaves the function out with all of them.
func TestFunctionLeftOutWhole(t *testing.T) {
	b := newBare(t)
	for _, sym := range b.img.Symbols() {
		if sym.Kind != guest.SymFunc || sym.User {
			continue
		}
		exits, err := probe.NewFunctions(b.img).Exits(sym)
		if err != nil || len(exits) < 2 {
			continue
		}
		last := exits[len(exits)-1]
		taken := b.attach(fmt.Sprintf("p:g/e %s+%d", sym.Name, uint64(last.Addr-sym.Addr)))
		pattern := sym.Name[:len(sym.Name)-1] + "[" + sym.Name[len(sym.Name)-1:] + "]"
		list, err := b.s.Attach([]session.Spec{{Def: "r:g/e " + pattern, AtRets: true}}, nil)
		if ps := b.s.Probes(); err == nil || len(ps) != 1 || ps[0].ID() != taken[0].ID {
			t.Errorf("%s, %d exits: %+v, %v; %d probes", sym.Name, len(exits), list, err, len(ps))
		}
		return
	}
	t.Error("no function has several exits")
}

// slidView is an image of which one variable is elsewhere in each boot, and one function has
// another name.
type slidView struct {
	*guest.Image
	by   guest.GVA
	name string
}

func (v *slidView) Lookup(name string) (guest.Symbol, error) {
	s, err := v.Image.Lookup(name)
	switch {
	case name != "vfs_bytes_read":
	case v.name == "":
		return guest.Symbol{}, guest.ErrSymbolNotFound
	default:
		s.Addr += v.by
	}
	return s, err
}

// Address is that of the kernel's own symbols, as a Linux guest's view has it: the variable is a
// module's.
func (v *slidView) Address(name string) (guest.GVA, bool) {
	s, err := v.Image.Lookup(name)
	return s.Addr, err == nil && name != "vfs_bytes_read"
}

func (v *slidView) Find(addr guest.GVA) (guest.Symbol, bool) {
	s, ok := v.Image.Find(addr)
	if s.Name == "vfs_read" {
		s.Name = v.name
	}
	return s, ok
}

// newSlid returns such a guest, whose variable is at.
func newSlid(t *testing.T) (b *bare, v *slidView, at guest.Symbol) {
	t.Helper()
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	v = &slidView{Image: img, name: "vfs_read"}
	if at, err = v.Lookup("vfs_bytes_read"); err != nil {
		t.Fatal(err)
	}
	return newBareOf(t, img, func() guest.View { return v }), v, at
}

// TestLocatedAgain: names in the arguments and filters of definitions refer to the
// addresses of each boot; counts continue.
func TestLocatedAgain(t *testing.T) {
	b, v, at := newSlid(t)
	sub := b.s.Subscribe(func(ev event.Event) bool { return session.ProbeOf(ev).Name() == "kprobes/v" }, event.Queue{}, session.AllEvents)
	defer sub.Close()
	if _, err := b.s.Attach([]session.Spec{{Def: "p:v vfs_read total=@vfs_bytes_read:u64 fd=$arg1", Filter: "total != 7"},
		{Def: "r:back vfs_read same=@vfs_bytes_read:u64 $retval"}}, nil); err != nil {
		t.Fatal(err)
	}
	set := func(addr guest.GVA, n uint64) {
		t.Helper()
		if err := b.WriteMemory(0, addr, binary.LittleEndian.AppendUint64(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	hit := func(want string) {
		t.Helper()
		b.hit(0, "vfs_read", 0, func(r *probe.Regs) { r.RDI = 3 })
		if want == "" {
			return
		}
		if _, _, text := b.next(sub); text != want {
			t.Errorf("hit %s, want %s", text, want)
		}
	}
	set(at.Addr, 11)
	hit("(vfs_read+0x4/0xa9) total=11 fd=0x3")
	for boot, x := range []struct {
		by   guest.GVA
		name string
		n    uint64
		want string
	}{{8, "vfs_read", 22, "(vfs_read+0x4/0xa9) total=22 fd=0x3"}, {16, "vfs_reed", 33, "(vfs_reed+0x4/0xa9) total=33 fd=0x3"},
		{8, "vfs_read", 7, ""}, {0, "", 0, ""}} {
		v.by, v.name = x.by, x.name
		if err := b.s.Reset(func() error { return nil }, b.Reload); err != nil {
			t.Fatal(err)
		}
		set(at.Addr, 44)
		set(at.Addr+x.by, x.n)
		hit(x.want)
		if i, err := b.s.Get("v"); err != nil || i.Stats.Hits != uint64(boot+2) {
			t.Errorf("boot %d: %+v, %v", boot, i.Stats, err)
		}
	}
	if n := len(b.s.Probes()); n != 2 {
		t.Errorf("%d probes", n)
	}
}

// TestLocatedInModules: what definitions read of a module is where that is each time that it comes, and
// nowhere while it is not there.
func TestLocatedInModules(t *testing.T) {
	b, v, at := newSlid(t)
	sub := b.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	b.attach("p:v vfs_read total=@vfs_bytes_read:u64")
	for i := range 3 {
		if err := b.WriteMemory(0, at.Addr+guest.GVA(8*i), binary.LittleEndian.AppendUint64(nil, uint64(11*(i+1)))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		by   guest.GVA
		name string
		want string
	}{{0, "vfs_read", "11"}, {8, "vfs_read", "22"}, {0, "", "(fault)"}, {16, "vfs_read", "33"}} {
		v.by, v.name = c.by, c.name
		b.onModules()
		b.hit(0, "vfs_read", 0, nil)
		if _, _, text := b.next(sub); !strings.HasSuffix(text, " total="+c.want) {
			t.Errorf("%s, want %s", text, c.want)
		}
	}
}
