package hostdoc

import (
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// Render returns docs/hosts.md. The records must be in the order of Load.
func Render(all []Record) string {
	d := &document{hosts: all}
	d.line(intro)
	d.writeRuns()
	d.traps()
	d.features()
	d.facts()
	d.line(emulators)
	d.line(again)
	return d.b.String()
}

// document collects the text of the page.
type document struct {
	hosts []Record
	b     strings.Builder
}

func (d *document) line(format string, args ...any) { fmt.Fprintf(&d.b, format+"\n", args...) }

// table writes the head of a table with a column for each host.
func (d *document) table(first string) {
	cells := []string{first}
	for _, h := range d.hosts {
		cells = append(cells, "`"+h.Name+"`")
	}
	d.row(cells...)
	d.line("|%s", strings.Repeat("---|", len(cells)))
}

func (d *document) row(cells ...string) {
	for _, c := range cells {
		fmt.Fprintf(&d.b, "| %s ", c)
	}
	d.line("|")
}

// writeRow writes a row with the text that f returns for each host.
func (d *document) writeRow(what string, f func(Record) string) {
	cells := []string{what}
	for _, h := range d.hosts {
		cells = append(cells, f(h))
	}
	d.row(cells...)
}

// writeRuns writes where and when the records were made.
func (d *document) writeRuns() {
	d.line("## The hosts\n")
	d.table("")
	d.writeRow("recorded", func(r Record) string { return r.Date })
	d.writeRow("kernel", func(r Record) string { return "Linux " + r.Kernel })
	d.writeRow("module", func(r Record) string { return r.Module })
	d.writeRow("runs on", func(r Record) string {
		if r.Emulator == "" {
			return "the development machine"
		}
		return r.Emulator
	})
	d.writeRow("CPU vendor shown to guests", func(r Record) string { return r.Doctor.KVM.Vendor })
	d.writeRow("KVM API", func(r Record) string { return fmt.Sprint(r.Doctor.KVM.API) })
	d.writeRow("vCPUs of a VM, at most", func(r Record) string { return fmt.Sprint(r.Doctor.KVM.MaxVCPUs) })
	d.line("")
}

// deliveries explains doctor's terms.
var deliveries = map[host.Delivery]string{
	host.DeliveryDebugExit: "`KVM_EXIT_DEBUG`, exception 3, RIP at the int3",
	host.DeliveryEmulation: "`KVM_EXIT_INTERNAL_ERROR`, suberror 1, RIP at the int3, first instruction byte `cc`",
	host.DeliveryVector:    "the guest's own IDT gets the exception",
	host.DeliveryNone:      "nothing happens: the guest runs on",
	host.DeliveryWorks:     "`KVM_EXIT_DEBUG` with the right address and DR6",
	host.DeliveryLoops:     "debug exits at the same address without end",
	host.DeliveryHangs:     "`KVM_RUN` does not come back until it is kicked",
	host.DeliveryBroken:    "something else",
}

// traps writes the tables of calibration results.
func (d *document) traps() {
	d.line("## What arrives, as calibration found it\n")
	d.table("")
	seen := map[host.Delivery]bool{}
	for _, l := range []struct {
		name string
		cpl  uint8
	}{{"CPL0 (guest kernel)", 0}, {"CPL3 (guest user)", 3}} {
		for _, t := range []struct {
			name string
			get  func(host.TrapReport) host.Delivery
		}{
			{"int3", func(t host.TrapReport) host.Delivery { return t.Int3 }},
			{"single step", func(t host.TrapReport) host.Delivery { return t.Step }},
			{"execute breakpoint", func(t host.TrapReport) host.Delivery { return t.HWBreak }},
			{"write watchpoint", func(t host.TrapReport) host.Delivery { return t.Watch }},
		} {
			d.writeRow(t.name+", "+l.name, func(r Record) string {
				got := t.get(r.Doctor.Traps.CPL(l.cpl))
				seen[got] = true
				return "`" + string(got) + "`"
			})
		}
		d.writeRow("#BP back to the guest, "+l.name, func(r Record) string {
			switch r.Doctor.Traps.CPL(l.cpl).Inject {
			case host.InjectAt:
				return "injected with RIP at the int3"
			case host.InjectAfter:
				return "injected with RIP after the int3"
			}
			return "it has it already"
		})
	}
	d.writeRow("registers in `kvm_run`", func(r Record) string { return yesOrNo(r.Doctor.KVM.SyncRegs) })
	d.writeRow("read-only memory", func(r Record) string { return yesOrNo(r.Doctor.KVM.Readonly) })
	d.line("")
	for _, w := range []host.Delivery{host.DeliveryDebugExit, host.DeliveryEmulation, host.DeliveryVector, host.DeliveryWorks,
		host.DeliveryNone, host.DeliveryLoops, host.DeliveryHangs, host.DeliveryBroken} {
		if seen[w] {
			d.line("* `%s`: %s", w, deliveries[w])
		}
	}
	d.line("")
}

func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// features writes what works on each host. It calls the code that rejects
// probes.
func (d *document) features() {
	d.line(featuresIntro)
	d.table("")
	for _, user := range []bool{false, true} {
		d.writeRow("kprobes, kretprobes and jprobes on "+code(user)+" code", func(r Record) string {
			switch {
			case r.Doctor.NoBreakReason(user, false) == "":
				return "any guest"
			case r.Doctor.NoBreakReason(user, true) == "":
				return "guests with the vector 3 stub"
			}
			return "no"
		})
	}
	for _, w := range []struct {
		name   string
		access probe.Access
	}{{"write", probe.AccessWrite}, {"read and write", probe.AccessReadWrite}, {"execute", probe.AccessExec}} {
		for _, user := range []bool{false, true} {
			d.writeRow(fmt.Sprintf("%s watch, %s", w.name, code(user)), func(r Record) string {
				switch {
				case r.Doctor.NoWatchReason(w.access, user, false) == "":
					return "yes"
				case r.Doctor.NoWatchReason(w.access, user, true) == "":
					return "only with `emulate`"
				}
				return "no"
			})
		}
	}
	for _, user := range []bool{false, true} {
		d.writeRow("stepping in place in "+code(user)+" code if the instruction's target is not known", func(r Record) string {
			cpl := uint8(0)
			if user {
				cpl = 3
			}
			return yesOrNo(r.Doctor.Traps.CPL(cpl).Step == host.DeliveryWorks)
		})
	}
	d.writeRow("slots and detours protected from the guest's own page tables", func(r Record) string { return yesOrNo(r.Doctor.KVM.Readonly) })
	d.writeRow("ioctls for each exit", func(r Record) string {
		if r.Doctor.KVM.SyncRegs {
			return "1"
		}
		return "3 to 5"
	})
	d.line("")
	d.line("The stub is `out %%al,$0xf3; iretq` at vector 3 of the guest's IDT; the built-in guest has it. A rejection has its reason, for example:\n")
	said := map[string]bool{}
	for _, r := range d.hosts {
		for _, why := range []string{r.Doctor.NoBreakReason(false, false), r.Doctor.NoBreakReason(true, false),
			r.Doctor.NoWatchReason(probe.AccessWrite, false, false), r.Doctor.NoWatchReason(probe.AccessExec, false, false)} {
			if why != "" && !said[why] {
				said[why] = true
				d.line("* %s", why)
			}
		}
	}
	d.line("")
}

func code(user bool) string {
	if user {
		return "user"
	}
	return "kernel"
}

// facts writes the facts that tests assert on each host.
func (d *document) facts() {
	d.line(factsIntro)
	cells := []string{""}
	for _, h := range d.hosts {
		cells = append(cells, "`"+h.Name+"`")
	}
	cells = append(cells, "asserted by")
	d.row(cells...)
	d.line("|%s", strings.Repeat("---|", len(cells)))
	for _, f := range facts {
		d.row(append(append([]string{f.what}, f.hosts[:]...), f.test)...)
	}
	d.line("")
}
