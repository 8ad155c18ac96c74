package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestBPFCheck says of programs how large they are, how long they run at most, and where.
func TestBPFCheck(t *testing.T) {
	const dir = "../../probe/bpf/testdata/obj/"
	for file, want := range map[string]struct {
		runs, why string
		steps     int64
	}{
		"record.o": {api.RunsInGuest, "", 1 << 15},
		"slow.o":   {api.RunsInGuest, "", bpf.DefaultBudget + 18},
		"sizes.o":  {api.RunsOnHost, "hash_of_maps", 1 << 10},
	} {
		o := checkObject(t.Context(), dir+file, bpf.Selection{}, bpf.Allowed{}, false)
		if o.Error != "" || len(o.Programs) != 1 {
			t.Errorf("%s: %+v", file, o)
			continue
		}
		p := o.Programs[0]
		if p.Runs != want.runs || !strings.Contains(p.Why, want.why) || p.Instructions == 0 || (p.CodeBytes > 0) != (want.runs == api.RunsInGuest) {
			t.Errorf("%s: %+v", file, p)
		}
		if p.Steps < int64(p.Instructions) || p.Steps > want.steps || want.steps > bpf.DefaultBudget && p.Steps != want.steps {
			t.Errorf("%s: %d steps, want at most %d", file, p.Steps, want.steps)
		}
		if (len(o.Notes) > 0) != (file == "sizes.o") {
			t.Errorf("%s: notes %q", file, o.Notes)
		}
	}
}

// TestBPFCheckConstants decides about programs with the constants that the user has set.
func TestBPFCheckConstants(t *testing.T) {
	const file = "../../probe/bpf/testdata/obj/prune.o"
	check := func(set map[string]string) checkedObject {
		return checkObject(t.Context(), file, bpf.Selection{Section: "kprobe/vfs_open", Set: set}, bpf.Allowed{Strict: true}, false)
	}
	if o := check(nil); o.Error != "" || len(o.Programs) != 1 || o.Programs[0].Runs != api.RunsInGuest {
		t.Errorf("%+v", o)
	}
	if o := check(map[string]string{"wide": "3"}); !strings.Contains(o.Error, "unknown helper send_signal") {
		t.Errorf("%+v", o)
	}
}

// TestMissingPlaces notes the places that the kernel does not have.
func TestMissingPlaces(t *testing.T) {
	symbols := []string{"vfs_read", "__traceiter_sched_switch", "event_sched_switch", "__event_sched_wakeup"}
	k := &bpf.Kernel{Symbol: func(name string) (uint64, bool) { return 1, slices.Contains(symbols, name) }}
	ret := asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	at := func(kind bpf.Kind, section, place string) bpf.LoadedProgram {
		p, err := bpf.New(bpf.Spec{Kind: kind, Insns: ret})
		if err != nil {
			t.Fatal(err)
		}
		return bpf.LoadedProgram{Program: p, Section: section, AttachTo: place}
	}
	programs := []bpf.LoadedProgram{
		at(bpf.Kprobe, "kprobe/vfs_read", "vfs_read"), at(bpf.Kprobe, "kprobe/vfs_read", "vfs_read+0x4"), at(bpf.Kprobe, "kprobe/gone", "gone+4"),
		at(bpf.Tracepoint, "tp_btf/sched_switch", "tracepoint:sched_switch"), at(bpf.Tracepoint, "raw_tp/gone", "tracepoint:gone"),
		at(bpf.Event, "tp/sched/sched_switch", "tracepoint:sched:sched_switch"), at(bpf.Event, "tp/sched/sched_wakeup", "tracepoint:sched:sched_wakeup"),
		at(bpf.Event, "tp/sched/gone", "tracepoint:sched:gone"), at(bpf.Kprobe, "uprobe/gone", "gone"), at(bpf.Kprobe, "kprobe", ""), at(bpf.Kprobe, "kprobe.multi/g*", "g*"),
	}
	const rest = ": attach rejects the program, unless a module of the guest has it"
	want := []string{"kprobe/gone: the kernel has no function gone" + rest, "raw_tp/gone: the kernel has no tracepoint gone" + rest, "tp/sched/gone: the kernel has no event sched:gone" + rest}
	if got := missingPlaces(k, programs); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := missingPlaces(nil, programs); got != nil {
		t.Errorf("without a kernel: %q", got)
	}
}

// TestUnproven lists the accesses that are checked when they are made, on request.
func TestUnproven(t *testing.T) {
	const file = "../../probe/bpf/testdata/obj/unproven.o"
	o := checkObject(t.Context(), file, bpf.Selection{}, bpf.Allowed{Strict: true}, true)
	if o.Error != "" || len(o.Programs) != 1 {
		t.Fatalf("%+v", o)
	}
	var got []string
	for _, u := range o.Programs[0].Unproven {
		what, _, _ := strings.Cut(u.What, ", which")
		got = append(got, what)
		if !strings.Contains(u.Source, "unproven.bpf.c:") {
			t.Errorf("%+v has no source", u)
		}
	}
	want := []string{`argument 1 of probe_read_kernel: it may be outside the value of map ".bss"`, `an access: it may be outside the value of map ".bss"`}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if o := checkObject(t.Context(), file, bpf.Selection{}, bpf.Allowed{}, false); o.Programs[0].Unproven != nil {
		t.Errorf("without a request: %+v", o)
	}
}
