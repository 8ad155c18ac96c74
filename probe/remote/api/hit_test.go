package api

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// plainHit is what encoding/json makes of a hit.
func plainHit(t *testing.T, h *Hit) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(h); err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// hits have each member of Hit, and values of all kinds.
func hits() []*Hit {
	regs := map[string]Hex{"ip": math.MaxUint64, "ax": 0, "r15": 0x123456789abcdef0}
	return []*Hit{
		{},
		{TimeNS: math.MaxInt64, CPU: 63, Probe: "kprobes/a", ID: math.MaxUint64, Stage: "pre", Addr: 0xffffffff802013b4, Symbol: "vfs_read+0x4", CPL: 3, Task: &Task{PID: math.MinInt32 + 1, Comm: "a task"}, Text: "(vfs_read+0x4/0xa9) fd=3"},
		{TimeNS: -5, Late: true, Ret: 0xffffffff80202677, RetSymbol: "do_syscall+0x57", DurationNS: -1, IRQsOff: true, Regs: regs, Text: "a\nb\x00\"\\\u2028<&>é\x7f"},
		{Map: "ring", Data: []byte{0, 1, 2, 255}, Value: json.RawMessage(`{"a":[1,2.5,null],"b":"<x>"}`)},
		{Args: []Arg{
			{Name: "n", Type: "s64", Value: int64(-3), Text: "-3"}, {Name: "u", Type: "u64", Value: uint64(1) << 53, Text: "9007199254740992"},
			{Name: "big", Type: "u64", Value: "18446744073709551615", Text: "18446744073709551615"}, {Name: "fault", Type: "u8", Text: "(fault)"},
			{Name: "f", Type: "x", Value: 1.5e300, Text: "1"}, {Name: "z", Type: "s8", Value: math.Copysign(0, -1)}, {Name: "i", Type: "x", Value: 255},
			{Name: "all", Type: "u8[2]", Value: []any{uint64(1), nil, "x"}, Text: "{1,2}"}, {Name: "s", Type: "string", Value: "a\xffb", Text: `"a\xffb"`, Cut: true, Raw: [][]byte{[]byte("a\xffb")}},
		}},
		{Stack: []Frame{{Addr: 1, Symbol: "_Z1fv+0x1/0x2", Name: "f()", Source: "a.cc:3", User: true, Inlined: true}, {}}},
	}
}

// TestHits: hits are written as encoding/json writes them, and read as it reads them, and the ones that a daemon writes most are not left to it.
func TestHits(t *testing.T) {
	for i, h := range hits() {
		want := plainHit(t, h)
		if got := string(AppendHit([]byte("x"), h)); got != "x"+want {
			t.Errorf("%d is written as\n%s, want\n%s", i, got, want)
		}
		checkRead(t, []byte(want))
	}
	for i, fast := range []bool{true, true, true, false, false, true} {
		data := string(AppendHit(nil, hits()[i]))
		p := hitParser{s: data, task: new(Task)}
		readObject(&p, hitMembers, new(Hit))
		if p.bad == fast {
			t.Errorf("%d is read by encoding/json: %v\n%s", i, p.bad, data)
		}
	}
}

// TestHitMembers: hits has a value of each member, so that TestHits fails for a member that is not written, and each is read, in the order of the fields.
func TestHitMembers(t *testing.T) {
	used := map[string]bool{}
	for _, h := range hits() {
		noteUsed(used, reflect.ValueOf(*h))
	}
	checkMembers(t, used, reflect.TypeFor[Hit](), namesOf(hitMembers), "value")
	checkMembers(t, used, reflect.TypeFor[Task](), namesOf(taskMembers))
	checkMembers(t, used, reflect.TypeFor[Arg](), namesOf(argMembers), "raw")
	checkMembers(t, used, reflect.TypeFor[Frame](), namesOf(frameMembers))
}

// noteUsed notes the fields with a value other than zero.
func noteUsed(used map[string]bool, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			noteUsed(used, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			noteUsed(used, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			used[v.Type().Name()+"."+v.Type().Field(i).Name] = used[v.Type().Name()+"."+v.Type().Field(i).Name] || !v.Field(i).IsZero()
			noteUsed(used, v.Field(i))
		}
	}
}

func namesOf[T any](all []member[T]) (names []string) {
	for _, m := range all {
		names = append(names, m.name)
	}
	return names
}

// checkMembers compares the fields of a structure with the members that are read; others are left to encoding/json.
func checkMembers(t *testing.T, used map[string]bool, of reflect.Type, names []string, others ...string) {
	t.Helper()
	var want []string
	for i := range of.NumField() {
		f := of.Field(i)
		if !used[of.Name()+"."+f.Name] {
			t.Errorf("no hit of this test has a value of %s.%s", of.Name(), f.Name)
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !slices.Contains(others, name) {
			want = append(want, `"`+name+`":`)
		}
	}
	if !slices.Equal(names, want) {
		t.Errorf("%s: members %q, want %q", of.Name(), names, want)
	}
}

// checkRead compares a reading with encoding/json's.
func checkRead(t *testing.T, data []byte) {
	t.Helper()
	want := new(Hit)
	errWant := json.Unmarshal(data, want)
	got, err := ReadHit(data)
	if (err == nil) != (errWant == nil) {
		t.Errorf("%s: %v, of encoding/json %v", data, err, errWant)
	} else if err == nil && !reflect.DeepEqual(got, want) {
		t.Errorf("%s is read as\n%+v, want\n%+v", data, got, want)
	}
}

// FuzzReadHit: whatever is read is what encoding/json reads, and what is not JSON is an error.
func FuzzReadHit(f *testing.F) {
	for _, h := range hits() {
		f.Add(AppendHit(nil, h))
	}
	for _, s := range []string{
		``, `{`, `{}`, ` {}`, `{} `, `[]`, `null`, `{"timeNs":01}`, `{"timeNs":-0}`, `{"timeNs":9223372036854775808}`, `{"timeNs":-9223372036854775808}`, `{"cpu":1,"cpu":2}`, `{"CPU":1}`, `{"cpu":1,}`,
		`{"cpl":256}`, `{"id":18446744073709551616}`, `{"addr":"0x1"}`, `{"addr":"0x00000000000000FG"}`, `{"addr":"0x00000000000000aF"}`, `{"args":null}`, `{"args":[]}`, `{"args":[{"value":1e999}]}`,
		`{"args":[{"value":-0},{"value":0.0},{"value":1.},{"value":-1}]}`, `{"args":[{"value":true}]}`, `{"text":"\ud800"}`, `{"text":"\u00e9\n"}`, "{\"text\":\"\xff\"}", "{\"text\":\"a\nb\"}", `{"text":"a`, `{"text":"a\`,
		`{"data":"AA=="}`, `{"data":"A\nA=="}`, `{"data":"A"}`, `{"regs":{}}`, `{"regs":{"a":"0x0000000000000001","a":"0x0000000000000002"}}`, `{"task":{}}`, `{"task":null}`, `{"stack":[]}`, `{"stack":[{}]}`, `{"late":true,"irqsOff":false}`, `{"late":1}`, `{"nothing":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkRead(t, data) })
}
