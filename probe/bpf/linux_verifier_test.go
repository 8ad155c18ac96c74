package bpf

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var verifierCases = flag.String("verifier-cases", "", "`file` with the cases of Linux's test_verifier, by scripts/verifier-suite.sh")

// linuxCase is one of them.
type linuxCase struct {
	name   string
	reject bool
	typ    int // of the program
	why    string
	maps   map[int]string
	code   []byte
}

const kprobeProgram = 2

// Types of programs (enum bpf_prog_type): the ones that the cases use if no context
// is needed, and those for probes.
var (
	anyProgram   = []int{0, 1, 3} // unspecified, of a socket's filter, and of a packet's class
	probeProgram = []int{kprobeProgram, 5, 7, 17}
)

// suiteMaps are the maps of the cases that programs can have here.
var suiteMaps = map[string]MapSpec{
	"map_hash_8b":      {Kind: Hash, KeySize: 8, ValueSize: 8, MaxEntries: 1},
	"map_hash_16b":     {Kind: Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1},
	"map_hash_48b":     {Kind: Hash, KeySize: 8, ValueSize: 48, MaxEntries: 1},
	"map_array_48b":    {Kind: Array, KeySize: 4, ValueSize: 48, MaxEntries: 1},
	"map_array_small":  {Kind: Array, KeySize: 4, ValueSize: 1, MaxEntries: 1},
	"map_array_ro":     {Kind: Array, KeySize: 4, ValueSize: 48, MaxEntries: 1, ReadOnly: true},
	"map_stacktrace":   {Kind: StackTrace, KeySize: 4, ValueSize: 8, MaxEntries: 1},
	"prog1":            {Kind: ProgArray, KeySize: 4, ValueSize: 4, MaxEntries: 4},
	"prog2":            {Kind: ProgArray, KeySize: 4, ValueSize: 4, MaxEntries: 8},
	"map_ringbuf":      {Kind: RingBuf, MaxEntries: MinRingSize},
	"map_event_output": {Kind: PerfEvents, KeySize: 4, ValueSize: 4, MaxEntries: 2},
}

func readCases(t *testing.T, path string) (out []linuxCase) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		x := strings.Split(in.Text(), "\t")
		if len(x) != 7 {
			t.Fatalf("a line of %d parts: %.100q", len(x), in.Text())
		}
		c := linuxCase{name: x[0], reject: x[1] == "reject", why: x[4], maps: map[int]string{}}
		if c.typ, err = strconv.Atoi(x[2]); err != nil {
			t.Fatal(err)
		}
		if c.code, err = hex.DecodeString(x[6]); err != nil {
			t.Fatal(err)
		}
		for _, m := range strings.Split(x[5], ",") {
			if at, kind, ok := strings.Cut(m, "="); ok {
				n, err := strconv.Atoi(at)
				if err != nil {
					t.Fatal(err)
				}
				c.maps[n] = kind
			}
		}
		out = append(out, c)
	}
	return out
}

// verdict is what becomes of a case here: elsewhere says why it does not say anything of programs of probes.
func (c *linuxCase) verdict(t *testing.T) (elsewhere, refused string, warnings []Warning) {
	socket := slices.Contains(anyProgram, c.typ)
	switch {
	case !socket && !slices.Contains(probeProgram, c.typ):
		return "other types of programs", "", nil
	case socket && c.readsPacket():
		return "packets", "", nil
	}
	code := slices.Clone(c.code)
	var specs []MapSpec
	for at, kind := range c.maps {
		spec, ok := suiteMaps[kind]
		if !ok {
			return "maps and functions that there are none of here", "", nil
		}
		binary.LittleEndian.PutUint32(code[8*at+4:], uint32(len(specs)))
		spec.Name = kind
		specs = append(specs, spec)
	}
	prog, err := Decode(code)
	if errors.Is(err, ErrTooLong) {
		return "programs of more than 65,536 slots", "", nil
	} else if err != nil {
		return "", err.Error(), nil
	}
	p, err := New(Spec{Kind: Kprobe, Insns: prog, Maps: testMaps(t, Heap{}, specs...)})
	if err != nil {
		if regexp.MustCompile(`unknown helper|packet conformance|BTF ID`).MatchString(err.Error()) {
			return "helpers and instructions of other programs", "", nil
		}
		return "", err.Error(), nil
	}
	warnings = p.Warnings()
	if c.typ != kprobeProgram && slices.ContainsFunc(warnings, func(w Warning) bool { return strings.Contains(w.What, "context") }) {
		return "contexts of other programs", "", nil
	}
	return "", "", warnings
}

// readsPacket reports whether a program loads the addresses of a packet, by the offsets of data, data_end and data_meta in struct __sk_buff.
func (c *linuxCase) readsPacket() bool {
	for at := 0; at+8 <= len(c.code); at += 8 {
		if off := binary.LittleEndian.Uint16(c.code[at+2:]); c.code[at] == 0x61 && (off == 76 || off == 80 || off == 140) {
			return true
		}
	}
	return false
}

// A linuxDifference is why our verifier may say something else than Linux's: by what Linux says of a program that it rejects, or by what
// we say of one that it accepts.
type linuxDifference struct{ said, why string }

var silentHere = []linuxDifference{
	{`bpf_context|ctx ptr`, "contexts of sockets"},
	{`unknown func|unknown opcode|size=0|empty range|subtraction from stack pointer|size = 0|expected=fp`, "allowed here"},
	{`unbounded|min value|max value|outside of the allowed|invalid access to map value|makes map_value pointer|negative`, "an access that may be outside: checked when the program runs"},
	{`infinite loop|back-edge`, "a loop that may not end: the budget ends it"},
	{`different pointers|size of register fill|invalid size|mem access|misaligned`, "an address that is followed only when the program runs, which checks it"},
	{`!read_ok`, "no such path: the context is not 0"},
	{`div by zero|invalid zero-sized read|map_ptr|read from map forbidden|cannot use helper`, "allowed here: a division by 0 gives 0, no bytes are no access, helpers are the same everywhere"},
	{`spin_lock`, "locks: a second one, or one that is not held, ends the run; one that is held at the end is released"},
	{`too large`, "a program with more paths than the verifier follows"},
}

var warnedHere = []linuxDifference{
	{`of the stack are read at`, "stack that nothing has written, which Linux lets privileged programs read"},
	{`is not an address: it is map`, "Linux's own structures"},
	{`r10 is read-only`, "dead code is checked, too"},
}

// TestLinuxVerifier compares the checker and the verifier with what Linux's says of its own cases, and prints each difference.
func TestLinuxVerifier(t *testing.T) {
	if *verifierCases == "" {
		t.Log("no cases: scripts/verifier-suite.sh fetches them")
		return
	}
	elsewhere, agree := map[string]int{}, map[bool]int{}
	differ := map[string][]string{}
	for _, c := range readCases(t, *verifierCases) {
		not, refused, warnings := c.verdict(t)
		if not != "" {
			elsewhere[not]++
			continue
		}
		here := refused
		if len(warnings) > 0 {
			here = warnings[0].Error()
		}
		if c.reject == (here != "") {
			agree[c.reject]++
			continue
		}
		known, said, kind := warnedHere, here, "accepted by Linux, not here"
		if c.reject {
			known, said, kind = silentHere, c.name+": "+c.why, "rejected by Linux, not here"
		}
		why := "unknown"
		if n := slices.IndexFunc(known, func(d linuxDifference) bool { return regexp.MustCompile(d.said).MatchString(said) }); n >= 0 {
			why = known[n].why
		} else {
			t.Errorf("%s: %s: %s", kind, c.name, said)
		}
		kind += ": " + why
		differ[kind] = append(differ[kind], fmt.Sprintf("%s (%s)", c.name, cmp.Or(here, c.why)))
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
	if agree[false] < 100 || agree[true] < 100 {
		t.Errorf("too few were compared")
	}
}
