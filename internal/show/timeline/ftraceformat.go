package timeline

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// layout is the format of an event of a trace.dat, as in Linux's events/GROUP/EVENT/format.
type layout struct {
	id     uint16
	group  string
	name   string
	format string
}

// firstID is the number of the first layout: Linux's own events have lower
// numbers.
const (
	firstID    = 1000
	stackID    = 4 // of ftrace/kernel_stack
	maxLayouts = 1 << 12
)

// field is a value of an event.
type field struct {
	value
	kind  string // type in C: u8 to u64, s8 to s64, "" for text
	print string
}

// fieldsOf returns the values of a hit, which follow the place.
func fieldsOf(h *api.Hit) (out []field) {
	if h.Stage == "program" {
		return []field{{value: value{name: "text", text: h.Text}, print: "%s"}}
	}
	for i := range h.Args {
		v := valueOf("", &h.Args[i])
		each := quotedStrings(&h.Args[i])
		if len(each) > 0 && strings.Contains(h.Args[i].Type, "[") {
			out = append(out, fieldsOfEach(v.name, each)...)
			continue
		}
		f := field{value: v, print: v.name + "=%s"}
		if v.kind != valueText {
			f.kind = h.Args[i].Type
			if v.kind == valueHex {
				f.kind = "u" + f.kind[1:]
			}
			f.print = v.name + "=" + conversion(v.kind, f.kind)
		} else if f.text = h.Args[i].Text; len(each) > 0 {
			f.text, f.print = each[0], v.name+`=\"%s\"`
		}
		out = append(out, f)
	}
	if h.Stage == "post" || len(h.Args) == 0 {
		for _, r := range x86.RegNames {
			if n, ok := h.Regs[r]; ok {
				out = append(out, field{value: value{name: r, kind: valueHex, number: uint64(n)}, kind: "u64", print: r + "=0x%llx"})
			}
		}
	}
	return out
}

// quotedStrings returns the texts of an argument as ftrace prints them, but
// without the quotes. They must be safe for a terminal, because trace-cmd and
// kernelshark print the file's bytes. It returns nil for an argument that is not
// text.
func quotedStrings(a *api.Arg) (out []string) {
	var b []byte
	for _, s := range a.Strings() {
		b = event.AppendQuoted(b[:0], '"', s)
		out = append(out, string(b[1:len(b)-1]))
	}
	return out
}

// fieldsOfEach returns the elements of an array, which is shown as in text.
// libtraceevent does not support arrays of strings: it cannot parse what Linux
// writes for one, __get_str(NAME[0]).
func fieldsOfEach(name string, each []string) (out []field) {
	for i, text := range each {
		f := field{value: value{name: fmt.Sprintf("%s_%d", name, i), text: text}, print: `,\"%s\"`}
		if i == 0 {
			f.print = identifier(name) + `={\"%s\"`
		}
		if i == len(each)-1 {
			f.print += "}"
		}
		out = append(out, f)
	}
	return out
}

// conversion returns printf's conversion for a number.
func conversion(of valueKind, kind string) string {
	long := ""
	if strings.HasSuffix(kind, "64") {
		long = "ll"
	}
	switch of {
	case valueSigned:
		return "%" + long + "d"
	case valueUnsigned:
		return "%" + long + "u"
	}
	return "0x%" + long + "x"
}

// layoutOf returns the layout of a hit, which depends on the probe and on the
// types of its values.
func (f *ftrace) layoutOf(h *api.Hit, fields []field) *layout {
	f.key = append(append(append(f.key[:0], h.Probe...), 0), h.Stage...)
	place := "%lx"
	if h.Symbol != "" && (h.Stage != "return" || h.RetSymbol != "") {
		place = "%pS"
	}
	f.key = append(f.key, place...)
	for _, x := range fields {
		f.key = append(append(append(append(append(f.key, 0), x.name...), 0), x.kind...), x.print...)
	}
	if l := f.layouts[string(f.key)]; l != nil {
		return l
	}
	if len(f.layouts) >= maxLayouts {
		return nil
	}
	group, name, ok := strings.Cut(h.Probe, "/")
	if !ok {
		group, name = "kprobes", h.Probe
	}
	if h.Stage == "post" {
		name += "_post"
	}
	var b formatBuilder
	switch h.Stage {
	case "program":
	case "return":
		b.number("unsigned long", "__probe_func", 8)
		b.number("unsigned long", "__probe_ret_ip", 8)
		b.number("u64", "duration_ns", 8)
		b.print("("+place+" <- "+place+")", "REC->__probe_ret_ip", "REC->__probe_func")
	default:
		b.number("unsigned long", "__probe_ip", 8)
		b.print("("+place+")", "REC->__probe_ip")
	}
	for _, x := range fields {
		b.field(x)
	}
	if h.Stage == "return" {
		b.print("[%lluns]", "REC->duration_ns")
	}
	return f.define(string(f.key), group, name, &b)
}

// define adds a layout under key.
func (f *ftrace) define(key, group, name string, b *formatBuilder) *layout {
	l := &layout{id: uint16(firstID + len(f.layouts)), group: identifier(group), name: identifier(name)}
	if l.group == "ftrace" { // that is Linux's own
		l.group = "kprobes"
	}
	l.format = b.text(l)
	f.layouts[key] = l
	f.order = append(f.order, l)
	return l
}

// formatBuilder builds the text of a format.
type formatBuilder struct {
	fields strings.Builder
	names  map[string]int
	prints strings.Builder
	args   []string
	offset int
}

// common are the fields of all events, of commonSize bytes.
const (
	common = `	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

`
	commonSize = 8
)

func (b *formatBuilder) number(kind, name string, size int) {
	signed := 0
	if strings.HasPrefix(kind, "s") {
		signed = 1
	}
	fmt.Fprintf(&b.fields, "\tfield:%s %s;\toffset:%d;\tsize:%d;\tsigned:%d;\n", kind, name, commonSize+b.offset, size, signed)
	b.offset += size
}

func (b *formatBuilder) print(format string, args ...string) {
	if b.prints.Len() > 0 && format[0] != ',' {
		b.prints.WriteByte(' ')
	}
	b.prints.WriteString(format)
	b.args = append(b.args, args...)
}

// field adds a value, under a name of its own.
func (b *formatBuilder) field(x field) {
	name := identifier(x.name)
	if b.names == nil {
		b.names = map[string]int{"__probe_ip": 1, "__probe_func": 1, "__probe_ret_ip": 1, "duration_ns": 1}
	}
	if b.names[name]++; b.names[name] > 1 {
		name = fmt.Sprintf("%s__%d", name, b.names[name])
	}
	said := strings.Replace(x.print, x.name+"=", identifier(x.name)+"=", 1)
	if x.kind == "" {
		b.number("__data_loc char[]", name, 4)
		b.print(said, "__get_str("+name+")")
		return
	}
	b.number(x.kind, name, widths[x.kind])
	b.print(said, "REC->"+name)
}

// widths are the sizes of numbers in bytes.
var widths = map[string]int{"u8": 1, "s8": 1, "u16": 2, "s16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8}

func (b *formatBuilder) text(l *layout) string {
	out := fmt.Sprintf("name: %s\nID: %d\nformat:\n%s%s\nprint fmt: \"%s\"", l.name, l.id, common, b.fields.String(), b.prints.String())
	if len(b.args) > 0 {
		out += ", " + strings.Join(b.args, ", ")
	}
	return out + "\n"
}

// identifier converts a text to a name in C.
func identifier(s string) string {
	out := []byte(shorten(s, 64))
	for i, c := range out {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '_' && (c < '0' || c > '9' || i == 0) {
			out[i] = '_'
		}
	}
	if len(out) == 0 {
		return "_"
	}
	return string(out)
}

// cutMark ends a text that was cut.
const cutMark = "..."

// appendFields adds the values of an event: numbers at their places, texts after
// all of them. Texts are cut where room ends, and marked as cut.
func appendFields(b []byte, fields []field) []byte {
	room := maxEvent - len(b)
	for _, x := range fields {
		room -= widths[x.kind]
		if x.kind == "" {
			room -= 5 + len(cutMark)
		}
	}
	fixed := len(b)
	for _, x := range fields {
		fixed += widths[x.kind]
		if x.kind == "" {
			fixed += 4
		}
	}
	var texts []byte
	for _, x := range fields {
		switch widths[x.kind] {
		case 1:
			b = append(b, byte(x.number))
		case 2:
			b = binary.LittleEndian.AppendUint16(b, uint16(x.number))
		case 4:
			b = binary.LittleEndian.AppendUint32(b, uint32(x.number))
		case 8:
			b = binary.LittleEndian.AppendUint64(b, x.number)
		default:
			text := command.Line(x.text)
			room += len(cutMark)
			if len(text) > room {
				text = Cut(text, max(0, room-len(cutMark))) + cutMark
			}
			room -= len(text)
			b = binary.LittleEndian.AppendUint32(b, uint32(fixed+len(texts))|uint32(len(text)+1)<<16)
			texts = append(append(texts, text...), 0)
		}
	}
	return append(b, texts...)
}
