package script

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// manyTarget is a guest with many functions, the names of which begin with the same bytes.
type manyTarget struct {
	fakeTarget
	functions []string
}

func newManyTarget(n int) manyTarget {
	t := manyTarget{fakeTarget: maps.Clone(target)}
	for i := range n {
		name := fmt.Sprintf("a_function_whose_name_begins_as_all_others_%d", i)
		t.fakeTarget[name] = 0xffffffff84000000 + uint64(i)<<12
		t.functions = append(t.functions, name)
	}
	return t
}

func (t manyTarget) Match(pattern string, _, _ bool, most int) ([]string, map[string]int) {
	if pattern != "a_*" {
		return nil, nil
	}
	return t.functions[:min(len(t.functions), most)], nil
}

// TestManyProbes compiles scripts for many functions.
func TestManyProbes(t *testing.T) {
	many := newManyTarget(5000)
	options := Options{CPUs: testCPUs}
	for _, c := range []struct{ script, want string }{
		{`k:a_* { @ = count(); }`, "stdin:1:1-6: ERROR: k:a_* matches more than 1024 functions\nk:a_* { @ = count(); }\n~~~~~\nHINT: make the pattern narrower, or raise max_probes: config = { max_probes = 20000 }"},
		{`config = { max_probes = 4999 } k:a_* { }`, "k:a_* matches more than 4999 functions"},
		{`config = { max_probes = 5000 } k:a_*, kr:a_* { }`, "kr:a_* matches more than 5000 functions"},
		{`config = { max_probes = 5000 } k:a_* { } kr:a_* { }`, "more than 5064 probes"},
		{`config = { max_probes = 5000 } k:a_* { print(probe); unroll(20) { @a++; @b[1]++; } }`, "the programs have more than 524288 instructions in all"},
	} {
		if _, err := Compile(c.script, many, options); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\nerror %v\nwant %s", c.script, err, c.want)
		}
	}
	s, err := Compile(`config = { max_probes = 20000 } k:a_* { unroll(20) { @a++; @b[1]++; } } BEGIN { print(config.max_probes); }`, many, options)
	if err != nil {
		t.Fatal(err)
	}
	if s.Probes != 5000 || s.CountProbes() != 5001 || len(s.Object.Programs) != 5001 {
		t.Errorf("%d probes of %d, %d programs", s.Probes, s.CountProbes(), len(s.Object.Programs))
	}
	if g := s.programs; g[s.Object.Programs[0].Name] != g[s.Object.Programs[4999].Name] {
		t.Error("the program was compiled more than once")
	}
	names := map[string]bool{}
	for i, p := range s.Object.Programs[:5000] {
		if names[p.Name] = true; p.AttachTo != many.functions[i] {
			t.Fatalf("program %d is at %s, want %s", i, p.AttachTo, many.functions[i])
		}
	}
	if len(names) != 5000 {
		t.Errorf("%d names of programs", len(names))
	}
}

// TestProgramsOfPlaces holds what differs between the places of a probe.
func TestProgramsOfPlaces(t *testing.T) {
	few := newManyTarget(3)
	hits := []hit{{fn: few.functions[0], args: [6]uint64{1}}, {fn: few.functions[2], args: [6]uint64{3}}, {fn: few.functions[2], ret: true, retval: 9}}
	for script, want := range map[string]string{
		`k:a_* { printf("%s %d\n", probe, arg0); }`:                                "kprobe:" + few.functions[0] + " 1\nkprobe:" + few.functions[2] + " 3",
		`k:a_*, kr:a_* { print(probetype); }`:                                      "kprobe\nkprobe\nkretprobe",
		`k:a_* { print(arg0); } kr:a_* { print(retval); }`:                         "1\n3\n9",
		`k:a_*, k:vfs_read { $x = str(0, 60); @a[$x, $x, $x] = arg0; clear(@a); }`: "",
	} {
		r, err := runOn(t, few, script, nil, false, 0, hits...)
		if got := strings.TrimSpace(r.out); err != nil || got != want {
			t.Errorf("%s\n%v, printed\n%s\nwant\n%s", script, err, got, want)
		}
	}
	s, err := Compile(`k:a_* { $x = str(0, 60); @a[$x, $x, $x, $x, $x, $x, $x] = arg0; }`, few, Options{CPUs: testCPUs})
	if err != nil {
		t.Fatal(err)
	}
	var rooms []string
	for _, m := range s.Object.Maps {
		if strings.HasPrefix(m.Name, mapRoom) {
			rooms = append(rooms, m.Name)
		}
	}
	if want := []string{"room0", "room1", "room2"}; !slices.Equal(rooms, want) {
		t.Errorf("rooms %v, want %v: a run at one place may interrupt that at another", rooms, want)
	}
	col, err := s.Object.Load(testCPUs+1, bpf.Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer col.Close()
	for i, p := range col.Programs {
		if name := p.Maps()[0].Spec().Name; name != rooms[i] {
			t.Errorf("program %d has %s, want %s", i, name, rooms[i])
		}
	}
}

// TestSharedPrograms says which programs are the same at each place.
func TestSharedPrograms(t *testing.T) {
	for script, placed := range map[string]bool{
		`k:vfs_rea[d] { @ = arg0; }`:           false,
		`k:vfs_rea[d] { @ = args.count; }`:     true,
		`k:vfs_rea[d] { @[probe] = 1; }`:       true,
		`tracepoint:sched:* { @ = 1; }`:        false,
		`tracepoint:sched:* { @ = args.pid; }`: true,
		`tracepoint:sched:* { @[probe] = 1; }`: true,
		`rawtracepoint:sched_* { @ = arg0; }`:  false,
	} {
		s, err := Compile(script, target, Options{CPUs: testCPUs})
		if err != nil {
			t.Fatal(err)
		}
		for name, g := range s.programs {
			if g.placed != placed {
				t.Errorf("%s: %s: different at each place: %t, want %t", script, name, g.placed, placed)
			}
		}
	}
}

// BenchmarkManyProbes compiles and loads scripts for many functions.
func BenchmarkManyProbes(b *testing.B) {
	for _, n := range []int{1000, 10_000, 20_000} {
		many := newManyTarget(n)
		b.Run(fmt.Sprintf("places=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s, err := Compile(`config = { max_probes = 20000 } k:a_* { @[comm] = count(); }`, many, Options{CPUs: testCPUs})
				if err != nil {
					b.Fatal(err)
				}
				col, err := s.Object.Load(testCPUs+1, bpf.Heap{}, 0)
				if err != nil {
					b.Fatal(err)
				}
				col.Close()
			}
		})
	}
}
