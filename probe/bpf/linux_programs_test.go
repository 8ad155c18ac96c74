package bpf

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

var verifierObjects = flag.String("verifier-objects", "", "`folder` with the objects of Linux's progs/verifier_*.c, by scripts/verifier-suite.sh")

// linuxProgram is a program of progs/verifier_*.c. What Linux says of it is in tags of
// its function (progs/bpf_misc.h).
type linuxProgram struct {
	file string
	spec *ebpf.ProgramSpec
	tags []string
}

// tag returns what follows a tag, of those with a number the first one.
func (l *linuxProgram) tag(name string) (string, bool) {
	for _, t := range l.tags {
		if rest, ok := strings.CutPrefix(t, "comment:test_"+name); ok && (rest == "" || rest[0] == '=') {
			return strings.TrimPrefix(rest, "="), true
		}
	}
	return "", false
}

func (l *linuxProgram) String() string {
	name, _ := l.tag("description")
	return l.file + ": " + cmp.Or(name, l.spec.Name)
}

// packetAt are the offsets in the contexts of programs of sockets and packets of the
// addresses of a packet (data, data_end, data_meta).
var packetAt = map[ebpf.ProgramType][]int16{
	ebpf.SocketFilter: {76, 80, 140}, ebpf.SchedCLS: {76, 80, 140}, ebpf.SchedACT: {76, 80, 140}, ebpf.CGroupSKB: {76, 80, 140}, ebpf.XDP: {0, 4, 8},
}

// readsPacket reports whether a program loads the addresses of a packet.
func (l *linuxProgram) readsPacket() bool {
	return slices.ContainsFunc(l.spec.Instructions, func(i asm.Instruction) bool {
		return i.OpCode.Class() == asm.LdXClass && i.OpCode.Size() == asm.Word && slices.Contains(packetAt[l.spec.Type], i.Offset)
	})
}

// verdict is as of linuxCase.
func (l *linuxProgram) verdict(t *testing.T, all *ebpf.CollectionSpec, x *externs) (elsewhere, refused string, warnings, unproven []Warning) {
	if arch, ok := l.tag("arch"); ok && arch != "X86_64" {
		return "other processors", "", nil, nil
	}
	switch l.spec.Type {
	case ebpf.SocketFilter, ebpf.SchedCLS, ebpf.SchedACT, ebpf.CGroupSKB, ebpf.XDP:
		if l.readsPacket() {
			return "packets", "", nil, nil
		}
	case ebpf.Kprobe, ebpf.TracePoint, ebpf.RawTracepoint, ebpf.PerfEvent, ebpf.Tracing:
	default:
		return "other types of programs", "", nil, nil
	}
	p := ObjectProgram{Name: l.spec.Name, Section: l.spec.SectionName, Kind: Kprobe}
	if l.spec.Type == ebpf.Tracing {
		p.Kind, p.args, p.returns, p.follows = Fentry, 6, false, true
	}
	o := &Object{}
	fail := func(err error) (string, string, []Warning, []Warning) {
		for _, d := range notHere {
			if regexp.MustCompile(d.said).MatchString(err.Error()) {
				return d.why, "", nil, nil
			}
		}
		return "", err.Error(), nil, nil
	}
	if err := p.link(slices.Clone(l.spec.Instructions), x); err != nil {
		return fail(err)
	}
	var ms []*Map
	for _, name := range p.maps {
		spec, err := o.objectMap(name, all.Maps[name])
		if err != nil {
			return fail(err)
		}
		spec.Values = nil
		ms = append(ms, testMaps(t, Heap{}, spec)...)
	}
	prog, err := New(Spec{Name: p.Name, Kind: p.Kind, Insns: p.insns, Maps: ms, Args: p.args, Returns: p.returns, Follows: p.follows})
	if err != nil {
		return fail(err)
	}
	warnings = prog.Warnings()
	if slices.ContainsFunc(warnings, func(w Warning) bool { return strings.Contains(w.What, "context") }) && l.spec.Type != ebpf.Kprobe {
		return "contexts of other programs", "", nil, nil
	}
	return "", "", warnings, prog.Unproven()
}

// notHere are errors for what programs of probes do not have.
var notHere = []linuxDifference{
	{`a function of the kernel|extern`, "functions of the kernel"},
	{`unknown helper`, "helpers of other programs"},
	{`packet conformance`, "legacy packet access"},
	{`is not supported \(|map type|not supported`, "maps and instructions that are not here"},
	{`BTF|CO-RE|relocation`, "types of another kernel"},
}

// TestLinuxVerifierPrograms compares the checker and the verifier with what Linux's
// says of the programs in progs/verifier_*.c, and prints each difference.
func TestLinuxVerifierPrograms(t *testing.T) {
	if *verifierObjects == "" {
		t.Log("no objects: scripts/verifier-suite.sh makes them")
		return
	}
	files, err := filepath.Glob(filepath.Join(*verifierObjects, "*.o"))
	if err != nil || len(files) == 0 {
		t.Fatal("no objects", err)
	}
	elsewhere, agree, differ := map[string]int{}, map[bool]int{}, map[string][]string{}
	accepted := 0
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file := strings.TrimSuffix(filepath.Base(path), ".o")
		b, x, err := prepare(b, Selection{Kernel: &Kernel{Symbol: func(string) (uint64, bool) { return 1 << 63, true }}})
		if err == nil {
			var spec *ebpf.CollectionSpec
			if spec, err = ebpf.LoadCollectionSpecFromReader(bytes.NewReader(b)); err == nil {
				for _, name := range sortedKeys(spec.Programs) {
					l := &linuxProgram{file: file, spec: spec.Programs[name]}
					if f := btf.FuncMetadata(&l.spec.Instructions[0]); f != nil {
						l.tags = f.Tags
					}
					_, succeeds := l.tag("expect_success")
					_, fails := l.tag("expect_failure")
					if !succeeds && !fails {
						continue // it is only for other programs, or for users without privileges
					}
					not, refused, warnings, unproven := l.verdict(t, spec, x)
					if not != "" {
						elsewhere[not]++
						continue
					}
					if succeeds {
						accepted++
					}
					here := refused
					if len(warnings) > 0 {
						here = warnings[0].Error()
					}
					if fails == (here != "") {
						agree[fails]++
						continue
					}
					msg := ""
					for _, tag := range l.tags {
						if rest, ok := strings.CutPrefix(tag, "comment:test_expect_msg="); ok {
							_, msg, _ = strings.Cut(rest, "=")
						}
					}
					known, said, kind := warnedHere, here, "accepted by Linux, warned of here"
					if refused != "" {
						kind = "accepted by Linux, rejected here"
					}
					if fails {
						known, said, kind = silentHere, l.String()+": "+msg, "rejected by Linux, not here"
					}
					why := "unknown"
					if n := slices.IndexFunc(known, func(d linuxDifference) bool { return regexp.MustCompile(d.said).MatchString(said) }); n >= 0 {
						why = known[n].why
					} else if !fails || len(unproven) == 0 {
						t.Errorf("%s: %v: %s", kind, l, said)
					}
					if fails && len(unproven) > 0 {
						kind, why, here = "rejected by Linux, not here", "an access that is listed as unproven", unproven[0].Error()
					}
					kind += ": " + why
					differ[kind] = append(differ[kind], fmt.Sprintf("%v (%s)", l, cmp.Or(here, msg)))
				}
			}
		}
		if err != nil {
			elsewhere[fmt.Sprintf("file %s: %v", file, err)]++
		}
	}
	fmt.Printf("%d programs are accepted by both, %d rejected or warned of by both\n", agree[false], agree[true])
	for _, kind := range slices.Sorted(maps.Keys(differ)) {
		fmt.Printf("%d %s\n", len(differ[kind]), kind)
		for _, l := range differ[kind] {
			fmt.Printf("\t%s\n", l)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(elsewhere)) {
		fmt.Printf("%d not compared: %s\n", elsewhere[why], why)
	}
}
