package timeline

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// ftrace writes a trace.dat of version 6 (trace-cmd.dat.v6(5)). Everything is
// written at Close: names and formats of events come before the events, and the
// events of each vCPU follow each other.
type ftrace struct {
	w       io.Writer
	pages   *pages
	base    int64 // of times: the guest's boot
	latest  int64
	layouts map[string]*layout
	order   []*layout
	key     []byte
	comms   map[int32]string
	symbols map[uint64]string
	event   []byte
}

// Bounds of the data that is kept of a trace.
const (
	maxComms   = 1 << 16
	maxSymbols = 1 << 16
)

func newFtrace(w io.Writer) (*ftrace, error) {
	p, err := newPages()
	if err != nil {
		return nil, err
	}
	return &ftrace{w: w, pages: p, layouts: map[string]*layout{}, comms: map[int32]string{}, symbols: map[uint64]string{}}, nil
}

// Write stores the events of a record.
func (f *ftrace) Write(r *Record) error {
	switch {
	case r.Start != nil:
		f.base, f.latest = r.Start.BootNS, r.Start.TimeNS
	case r.Hit != nil:
		f.latest = max(f.latest, r.Hit.TimeNS)
		return f.hit(r.Hit)
	case r.Boot != nil:
		return f.remark(0, r.Boot.BootNS, "boot", "guest booted")
	case r.Stop != nil:
		return f.remark(r.Stop.CPU, r.Stop.TimeNS, "stop", StopText(*r.Stop))
	case r.Lost != nil:
		return f.remark(0, f.latest, "lost", fmt.Sprintf("LOST %d EVENTS", r.Lost.Lost))
	case r.Map != nil:
		for _, v := range r.Map.Values {
			if err := f.number(r.Map.TimeNS, shorten(r.Map.Map, 64), shorten(v.Key, 64), v.Value); err != nil {
				return err
			}
		}
	case r.End != nil:
		return f.remark(0, f.latest, "end", fmt.Sprintf("%s: %d delivered, %d lost", r.End.Reason, r.End.Delivered, r.End.Lost))
	}
	return nil
}

// fileTime converts a time of the stream to the file's.
func (f *ftrace) fileTime(ns int64) int64 { return max(0, ns-f.base) }

// begin begins an event with the fields that all events have.
func (f *ftrace) begin(id uint16, flags uint8, pid int32) {
	f.event = binary.LittleEndian.AppendUint16(f.event[:0], id)
	f.event = append(f.event, flags, 0)
	f.event = binary.LittleEndian.AppendUint32(f.event, uint32(pid))
}

// irqsOff is TRACE_FLAG_IRQS_OFF in common_flags.
const irqsOff = 1

// noTask is the task of a hit without a task.
const noTask = -1

func (f *ftrace) hit(h *api.Hit) error {
	fields := fieldsOf(h)
	if size := 64 + 9*len(fields); size > maxEvent { // no definition has as many
		fields = []field{{value: value{name: "text", text: h.Text}, print: "%s"}}
	}
	l := f.layoutOf(h, fields)
	if l == nil { // there are too many
		return f.remark(h.CPU, h.TimeNS, "hit", h.Probe+": "+h.Text)
	}
	pid, flags := int32(noTask), uint8(0)
	if h.Task != nil {
		pid = h.Task.PID
		if _, ok := f.comms[pid]; ok || len(f.comms) < maxComms {
			f.comms[pid] = h.Task.Comm
		}
	}
	if h.IRQsOff {
		flags = irqsOff
	}
	f.begin(l.id, flags, pid)
	switch h.Stage {
	case "program":
	case "return":
		f.symbol(h.Addr, h.Symbol)
		f.symbol(h.Ret, h.RetSymbol)
		f.event = binary.LittleEndian.AppendUint64(f.event, uint64(h.Addr))
		f.event = binary.LittleEndian.AppendUint64(f.event, uint64(h.Ret))
		f.event = binary.LittleEndian.AppendUint64(f.event, uint64(h.DurationNS))
	default:
		f.symbol(h.Addr, h.Symbol)
		f.event = binary.LittleEndian.AppendUint64(f.event, uint64(h.Addr))
	}
	f.event = appendFields(f.event, fields)
	if err := f.pages.add(h.CPU, f.fileTime(h.TimeNS), f.event); err != nil || len(h.Stack) == 0 {
		return err
	}
	f.begin(stackID, flags, pid)
	stack := h.Stack[:min(len(h.Stack), maxEvent/8-2)]
	f.event = binary.LittleEndian.AppendUint64(f.event, uint64(len(stack)))
	for _, s := range stack {
		f.symbol(s.Addr, s.Symbol)
		f.event = binary.LittleEndian.AppendUint64(f.event, uint64(s.Addr))
	}
	return f.pages.add(h.CPU, f.fileTime(h.TimeNS), f.event)
}

// remark adds an event that is not a hit.
func (f *ftrace) remark(cpu int, ns int64, name, text string) error {
	fields := []field{{value: value{name: "text", text: text}, print: "%s"}}
	return f.writeOwn(cpu, ns, name, fields)
}

// number stores the number at a key of a map.
func (f *ftrace) number(ns int64, name, key string, n int64) error {
	return f.writeOwn(0, ns, "map", []field{
		{value: value{name: "map", text: name}, print: "%s"},
		{value: value{name: "key", text: key}, print: "[%s]"},
		{value: value{name: "value", number: uint64(n)}, kind: "s64", print: "= %lld"},
	})
}

// writeOwn stores an event of the group guestprobe.
func (f *ftrace) writeOwn(cpu int, ns int64, name string, fields []field) error {
	key := "\x00" + name
	l := f.layouts[key]
	if l == nil {
		var b formatBuilder
		for _, x := range fields {
			b.field(x)
		}
		l = f.define(key, "guestprobe", name, &b)
	}
	f.begin(l.id, 0, noTask)
	f.event = appendFields(f.event, fields)
	return f.pages.add(cpu, f.fileTime(ns), f.event)
}

// symbol records the name of a function for an address in it, from
// NAME+OFFSET/SIZE.
func (f *ftrace) symbol(addr api.Hex, symbol string) {
	name, offset, _ := strings.Cut(symbol, "+")
	offset, size, _ := strings.Cut(offset, "/")
	n, err := strconv.ParseUint(cmp.Or(offset, "0"), 0, 64)
	if name == "" || err != nil || n > uint64(addr) || len(f.symbols) >= maxSymbols {
		return
	}
	start := uint64(addr) - n
	f.symbols[start] = name
	if n, err := strconv.ParseUint(size, 0, 64); err == nil && n > 0 && start+n > start && f.symbols[start+n] == "" {
		f.symbols[start+n] = noSymbol
	}
}

// noSymbol marks the end of a function: a lookup of an address takes the closest
// symbol before it.
const noSymbol = "?"

// Close writes the file.
func (f *ftrace) Close() (err error) {
	defer f.pages.file.Close()
	if err := f.pages.end(); err != nil {
		return err
	}
	cpus := max(1, len(f.pages.cpus))
	head := f.head(cpus)
	// Then come the offsets of the events of each vCPU.
	at := len(head) + cpus*16
	at += -at & (pageSize - 1)
	for i := range cpus {
		n := 0
		if i < len(f.pages.cpus) {
			n = len(f.pages.cpus[i].in) * pageSize
		}
		head = binary.LittleEndian.AppendUint64(head, uint64(at))
		head = binary.LittleEndian.AppendUint64(head, uint64(n))
		at += n
	}
	head = append(head, make([]byte, -len(head)&(pageSize-1))...)
	w := bufio.NewWriterSize(f.w, 64<<10)
	if _, err := w.Write(head); err != nil {
		return err
	}
	if err := f.pages.write(w); err != nil {
		return err
	}
	return w.Flush()
}

// Linux's descriptions of the formats of pages and events (events/header_page,
// events/header_event), and of a stack.
const (
	headerPage = `	field: u64 timestamp;	offset:0;	size:8;	signed:0;
	field: local_t commit;	offset:8;	size:8;	signed:1;
	field: int overwrite;	offset:8;	size:1;	signed:1;
	field: char data;	offset:16;	size:4080;	signed:1;
`
	headerEvent = `# compressed entry header
	type_len    :    5 bits
	time_delta  :   27 bits
	array       :   32 bits

	padding     : type == 29
	time_extend : type == 30
	time_stamp : type == 31
	data max type_len  == 28
`
	stackFormat = `name: kernel_stack
ID: 4
format:
` + common + `	field:int size;	offset:8;	size:4;	signed:1;
	field:unsigned long caller[];	offset:16;	size:0;	signed:0;

print fmt: "%d frames", REC->size
`
)

// head returns the file up to the offsets of the events.
func (f *ftrace) head(cpus int) []byte {
	le := binary.LittleEndian
	sized := func(b []byte, text string) []byte { return append(le.AppendUint64(b, uint64(len(text))), text...) }
	b := []byte("\x17\x08\x44tracing6\x00\x00\x08") // little endian, long of 8 bytes
	b = le.AppendUint32(b, pageSize)
	b = sized(append(b, "header_page\x00"...), headerPage)
	b = sized(append(b, "header_event\x00"...), headerEvent)
	b = sized(le.AppendUint32(b, 1), stackFormat)

	groups := map[string][]*layout{}
	for _, l := range f.order {
		groups[l.group] = append(groups[l.group], l)
	}
	b = le.AppendUint32(b, uint32(len(groups)))
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		b = append(append(b, group...), 0)
		b = le.AppendUint32(b, uint32(len(groups[group])))
		for _, l := range groups[group] {
			b = sized(b, l.format)
		}
	}
	var text strings.Builder
	f.symbols[1<<64-1] = noSymbol // the last one is never found
	for _, addr := range slices.Sorted(maps.Keys(f.symbols)) {
		fmt.Fprintf(&text, "%016x T %s\n", addr, word(f.symbols[addr], 256))
	}
	b = append(le.AppendUint32(b, uint32(text.Len())), text.String()...)
	b = le.AppendUint32(b, 0) // no formats of trace_printk
	text.Reset()
	for _, pid := range slices.Sorted(maps.Keys(f.comms)) {
		fmt.Fprintf(&text, "%d %s\n", pid, word(f.comms[pid], 64))
	}
	b = sized(b, text.String())
	b = le.AppendUint32(b, uint32(cpus))
	return append(b, "flyrecord\x00"...)
}

// word makes one word of a text that may come from a guest.
func word(s string, most int) string {
	return strings.Join(strings.Fields(command.Clean(shorten(s, most))), "_")
}
