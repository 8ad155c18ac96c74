package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"testing"
)

// TestHostileText wants no control character of a guest in a line.
func TestHostileText(t *testing.T) {
	f := compile(t, "p vfs_read s=+0(%si):string c=%ax:char", Options{})
	text := "é\n\x1b[2J\xff\"\\\u202e\x00"
	b := blankRecord(f, len(text))
	le.PutUint32(b[f.Fields[0].Offset:], uint32(len(text))<<16|uint32(f.Dynamic))
	b[f.Fields[1].Offset] = '\r'
	copy(b[f.Dynamic:], text)
	rec, err := f.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	want := `(vfs_read+0x0/0x370) s="é\x0a\x1b[2J\xff\"\\\xe2\x80\xae" c='\x0d'`
	if got := string(f.AppendArgs(nil, rec)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	out, err := json.Marshal(rec.Values[0])
	if err != nil || string(out) != `{"name":"s","type":"string","value":"é\n\u001b[2J\ufffd\"\\`+"\u202e"+`","text":"\"é\\x0a\\x1b[2J\\xff\\\"\\\\\\xe2\\x80\\xae\"","raw":["w6kKG1sySv8iXOKArg=="]}` {
		t.Errorf("JSON %s, %v", out, err)
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

// blankRecord is a record of f with nothing but zeros and n bytes of text.
func blankRecord(f *Layout, n int) []byte {
	b := make([]byte, f.Dynamic+n)
	le.PutUint32(b[RecordMark:], 77<<2|uint32(f.Moment))
	return b
}

func TestDecodeMalformed(t *testing.T) {
	f := compile(t, readDef, Options{})
	good := blankRecord(f, 4)
	copy(good[f.Dynamic:], "abc")
	loc := f.Fields[2].Offset
	le.PutUint32(good[loc:], 4<<16|uint32(f.Dynamic))
	if r, err := f.Decode(good); err != nil || r.Values[2].Data[0].Text != "abc" {
		t.Errorf("good record: %+v, %v", r, err)
	}
	for name, spoil := range map[string]func(b []byte) []byte{
		"empty":        func([]byte) []byte { return nil },
		"header only":  func(b []byte) []byte { return b[:recordHeader] },
		"stage":        func(b []byte) []byte { b[RecordMark] |= 3; return b },
		"wrong kind":   func(b []byte) []byte { b[RecordMark] |= byte(AtReturn); return b },
		"no post":      func(b []byte) []byte { b[RecordMark] |= byte(AtPost); return b[:f.Post().Dynamic-1] },
		"cut":          func(b []byte) []byte { return b[:len(b)-1] },
		"text outside": func(b []byte) []byte { le.PutUint32(b[loc:], 0xffff<<16|0xffff); return b },
		"no NUL":       func(b []byte) []byte { b[len(b)-1] = 'x'; return b },
	} {
		if r, err := f.Decode(spoil(bytes.Clone(good))); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

// FuzzDecode wants an error, or a record that prints, from any bytes.
func FuzzDecode(f *testing.F) {
	fs := []*Layout{
		compile(f, readDef+" t=+0(%ax):string[3] q=+0(%ax):s16[5]", Options{Tasks: true, Regs: true}),
		compile(f, "r vfs_read $arg1 +0($retval):string", Options{}),
	}
	f.Add([]byte{})
	f.Add(make([]byte, 400))
	for _, x := range fs {
		f.Add(blankRecord(x, 300))
		f.Add(blankRecord(x.Post(), 0))
	}
	f.Fuzz(func(t *testing.T, rec []byte) {
		for _, x := range fs {
			r, err := x.Decode(rec)
			if err != nil {
				if !errors.Is(err, ErrRecord) {
					t.Errorf("error %v does not wrap ErrRecord", err)
				}
				continue
			}
			x.AppendArgs(nil, r)
			if _, err := json.Marshal(r.Values); err != nil {
				t.Error(err)
			}
		}
	})
}
