package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/guestprobe/guestprobe/probe"
)

// captureOne hits vfs_read once and returns the decoded record.
func captureOne(t *testing.T, f *Fetcher, m *machine, regs *probe.Regs) *Record {
	t.Helper()
	var rec *Record
	m.handle(t, func(c *probe.Context) {
		buf := make([]byte, f.BufSize())
		n := 0
		if f.Def().Kind == KindReturn {
			data := make([]byte, f.EntrySize())
			f.CaptureEntry(c, data)
			c.Regs.RIP = uint64(addrRead) + 0x500 + 0x6f // in ksys_read
			n = f.CaptureReturn(c, data, buf)
		} else {
			n = f.Capture(c, buf)
		}
		var err error
		if rec, err = f.Decode(buf[:n]); err != nil {
			t.Error(err)
		}
	})
	m.hit(0, regs)
	return rec
}

// TestLine compares whole trace lines with ones that Linux printed, but for
// what depends on the guest.
func TestLine(t *testing.T) {
	tests := []struct {
		name, def string
		opt       Options
		want      string
	}{
		{"all kinds of value", `p:argtypes vfs_read a=%ax b=%di:u8 c=%di:char d=%ip:symbol e=%r9:u32 f=+0(%si):x8[4] g=%r9:s32 h=%di:b4@4/8 s=+0(%r8):string sym=%ip:symstr bad=+0(%cx):string n=+8(%si):s16 lit=\"x" neg=\-1:s8`, Options{},
			`           <...>-0       [002] d....     2.162689: argtypes: (vfs_read+0x0/0x370) a=0xffff8880051ed400 b=84 c='T' d=vfs_read+0x1/0x370 e=4294892774 f={0x0,0x1,0x80,0xff} g=-74522 h=5 s="a-file-name.txt" sym="vfs_read+0x1/0x370" bad=(fault) n=-2 lit="x" neg=-1` + "\n"},
		{"return", `r:myret vfs_read arg=$arg1 $retval`, Options{Profile: idle{}},
			"         swapper-1       [002] d....     2.162689: myret: (ksys_read+0x6f/0xf0 <- vfs_read) arg=0x54 arg2=0xffff8880051ed400\n"},
		{"no arguments", "p vfs_read", Options{},
			"           <...>-0       [002] d....     2.162689: p_vfs_read_0: (vfs_read+0x0/0x370)\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, _ := readMachine(t, 1)
			m.set(0x7000, []byte{0, 1, 0x80, 0xff, 0, 0, 0, 0, 0xfe, 0xff})
			f := compile(t, tt.def, tt.opt)
			e := uint64(4294892774)
			rec := captureOne(t, f, m, &probe.Regs{RAX: 0xffff8880051ed400, RDI: 0x54, RSI: 0x7000, R8: 0x5000, R9: e})
			if got := string(f.AppendLine(nil, 2, 2162689123, rec)); got != tt.want {
				t.Errorf(" got %s want %s", got, tt.want)
			}
		})
	}
}

// TestHostileText wants no control character of a guest in a line.
func TestHostileText(t *testing.T) {
	m, _ := readMachine(t, 1)
	m.set(0x7000, []byte("é\n\x1b[2J\xff\"\\\u202e\x00"))
	f := compile(t, "p vfs_read s=+0(%si):string c=%ax:char", Options{})
	rec := captureOne(t, f, m, &probe.Regs{RSI: 0x7000, RAX: '\r'})
	want := `(vfs_read+0x0/0x370) s="é\x0a\x1b[2J\xff"\\xe2\x80\xae" c='\x0d'`
	if got := string(f.AppendArgs(nil, rec)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	b, err := json.Marshal(rec.Values[0])
	if err != nil || string(b) != `{"name":"s","type":"string","value":"é\n\u001b[2J\ufffd\"\\`+"\u202e"+`","text":"\"é\\x0a\\x1b[2J\\xff\"\\\\xe2\\x80\\xae\"","raw":["w6kKG1sySv8iXOKArg=="]}` {
		t.Errorf("JSON %s, %v", b, err)
	}
}

func TestJSON(t *testing.T) {
	typ := func(s string) Type {
		v, ok := parseType(s)
		if !ok {
			t.Fatal(s)
		}
		return v
	}
	array := typ("u8")
	array.Count = 2
	for _, tt := range []struct {
		v    Value
		want string
	}{
		{Value{"a", typ("u64"), []Datum{{Bits: 1 << 53}}}, `{"name":"a","type":"u64","value":9007199254740992,"text":"9007199254740992"}`},
		{Value{"a", typ("u64"), []Datum{{Bits: 1<<53 + 1}}}, `{"name":"a","type":"u64","value":"9007199254740993","text":"9007199254740993"}`},
		{Value{"a", typ("x64"), []Datum{{Bits: math.MaxUint64}}}, `{"name":"a","type":"x64","value":"18446744073709551615","text":"0xffffffffffffffff"}`},
		{Value{"a", typ("s64"), []Datum{{Bits: ^uint64(1<<53) + 1}}}, `{"name":"a","type":"s64","value":-9007199254740992,"text":"-9007199254740992"}`},
		{Value{"a", typ("s64"), []Datum{{Bits: ^uint64(1 << 53)}}}, `{"name":"a","type":"s64","value":"-9007199254740993","text":"-9007199254740993"}`},
		{Value{"a", typ("s64"), []Datum{{Bits: 1<<53 + 1}}}, `{"name":"a","type":"s64","value":"9007199254740993","text":"9007199254740993"}`},
		{Value{"a", typ("s32"), []Datum{{Bits: 0xffffffff}}}, `{"name":"a","type":"s32","value":-1,"text":"-1"}`},
		{Value{"a", typ("char"), []Datum{{Bits: 'A'}}}, `{"name":"a","type":"char","value":65,"text":"'A'"}`},
		{Value{"a", array, []Datum{{Bits: 1}, {Fault: true}}}, `{"name":"a","type":"u8[2]","value":[1,null],"text":"{1,(fault)}"}`},
		{Value{"a", typ("string"), []Datum{{Text: "x", Cut: true}}}, `{"name":"a","type":"string","value":"x","text":"\"x\"","cut":true}`},
		{Value{"a", typ("ustring"), []Datum{{Fault: true}}}, `{"name":"a","type":"ustring","value":null,"text":"(fault)"}`},
		{Value{"a", typ("symbol"), []Datum{{Bits: 4096, Text: "f+0x0/0x1"}}}, `{"name":"a","type":"symbol","value":4096,"text":"f+0x0/0x1"}`},
		{Value{"a", typ("symstr"), []Datum{{Bits: 1}}}, `{"name":"a","type":"symstr","value":"0x1","text":"\"0x1\""}`},
		{Value{"a", Type{Format: Bits, Size: 1, Width: 4, Offset: 4}, []Datum{{Bits: 5}}}, `{"name":"a","type":"b4@4/8","value":5,"text":"5"}`},
	} {
		if b, err := json.Marshal(tt.v); err != nil || string(b) != tt.want {
			t.Errorf("got %s, %v\nwant %s", b, err, tt.want)
		}
	}
}

// TestPost wants a record of the stage post with registers and no arguments.
func TestPost(t *testing.T) {
	m, regs := readMachine(t, 1)
	f := compile(t, readDef, Options{Regs: true, Profile: idle{}})
	m.handle(t, func(c *probe.Context) {
		buf := make([]byte, f.BufSize())
		r, err := f.Decode(buf[:f.CapturePost(c, buf)])
		if err != nil || r.Stage != StagePost || *r.Regs != *c.Regs || r.Values != nil || r.Comm != "swapper" || r.Addr != addrRead {
			t.Errorf("got %+v, %v", r, err)
		}
	})
	m.hit(0, regs)
}

func TestDecodeMalformed(t *testing.T) {
	m, regs := readMachine(t, 1)
	f := compile(t, readDef, Options{})
	m.handle(t, func(c *probe.Context) {
		buf := make([]byte, f.BufSize())
		good := buf[:f.Capture(c, buf)]
		if _, err := f.Decode(good); err != nil {
			t.Errorf("good record: %v", err)
		}
		loc := f.ops[2].off
		for name, spoil := range map[string]func(b []byte) []byte{
			"empty":        func([]byte) []byte { return nil },
			"header only":  func(b []byte) []byte { return b[:entryArgs] },
			"stage":        func(b []byte) []byte { b[0] = 3; return b },
			"wrong kind":   func(b []byte) []byte { b[0] = byte(StageReturn); return b },
			"cut":          func(b []byte) []byte { return b[:len(b)-1] },
			"text outside": func(b []byte) []byte { le.PutUint32(b[loc:], 0xffff<<16|0xffff); return b },
			"no NUL":       func(b []byte) []byte { b[len(b)-1] = 'x'; return b },
		} {
			if r, err := f.Decode(spoil(bytes.Clone(good))); !errors.Is(err, ErrRecord) {
				t.Errorf("%s: got %+v, %v", name, r, err)
			}
		}
	})
	m.hit(0, regs)
}

// FuzzDecode wants an error, or a record that prints, from any bytes.
func FuzzDecode(f *testing.F) {
	fs := []*Fetcher{
		compile(f, readDef+" t=+0(%ax):string[3] q=+0(%ax):s16[5]", Options{Profile: idle{}, Regs: true}),
		compile(f, "r vfs_read $arg1 +0($retval):string", Options{}),
	}
	f.Add([]byte{})
	f.Add(make([]byte, 400))
	f.Add(append([]byte{2}, make([]byte, 400)...))
	f.Add(append([]byte{1}, make([]byte, 400)...))
	f.Fuzz(func(t *testing.T, rec []byte) {
		for _, x := range fs {
			r, err := x.Decode(rec)
			if err != nil {
				if !errors.Is(err, ErrRecord) {
					t.Errorf("error %v does not wrap ErrRecord", err)
				}
				continue
			}
			x.AppendLine(nil, 0, 0, r)
			if _, err := json.Marshal(r.Values); err != nil {
				t.Error(err)
			}
		}
	})
}
