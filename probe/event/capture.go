package event

import (
	"bytes"
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

var le = binary.LittleEndian

const pageSize = 4096

// Capture writes the record of a hit into buf, which has at least BufSize
// bytes, and returns its length. It is for a pre handler of a p definition and
// runs on the vCPU's thread: it takes no lock and allocates nothing (the target
// may, to report memory that cannot be read), and its work is bounded by the
// definition. Such memory is recorded as a fault.
func (f *Fetcher) Capture(c *probe.Context, buf []byte) int {
	f.header(c, buf, StagePre)
	le.PutUint64(buf[8:], uint64(c.Addr))
	return f.capture(c, nil, buf)
}

// CaptureEntry writes what the return needs from the entry into data, which
// has EntrySize bytes. It is for the entry handler of a return probe.
func (f *Fetcher) CaptureEntry(c *probe.Context, data []byte) {
	for i := range f.entry {
		slot := data[i*entrySlot : (i+1)*entrySlot]
		v, ok := f.entry[i].eval(c, nil, slot[:8])
		le.PutUint64(slot, v)
		slot[8] = 0
		if !ok {
			slot[8] = 1
		}
	}
}

// PutEntry writes value i of what CaptureEntry keeps, which could be read.
func PutEntry(data []byte, i int, v uint64) {
	slot := data[i*entrySlot : (i+1)*entrySlot]
	le.PutUint64(slot, v)
	slot[8] = 0
}

// CaptureReturn is Capture for the return handler of an r definition. Entry is
// what CaptureEntry wrote for this activation; Regs.RIP is the address that is
// returned to.
func (f *Fetcher) CaptureReturn(c *probe.Context, entry, buf []byte) int {
	f.header(c, buf, StageReturn)
	le.PutUint64(buf[8:], uint64(f.addr))
	le.PutUint64(buf[16:], c.Regs.RIP)
	return f.capture(c, entry, buf)
}

// CapturePost writes a record without arguments: where, and, with
// Options.Regs, the registers as the probed instruction left them.
func (f *Fetcher) CapturePost(c *probe.Context, buf []byte) int {
	f.header(c, buf, StagePost)
	le.PutUint64(buf[8:], uint64(c.Addr))
	return f.context(c, buf, entryArgs)
}

func (f *Fetcher) header(c *probe.Context, buf []byte, stage Stage) {
	flags := byte(0)
	if c.Regs.RFLAGS&insn.FlagIF == 0 {
		flags = flagIRQsOff
	}
	le.PutUint64(buf, uint64(stage)|uint64(c.CPL)<<8|uint64(flags)<<16)
}

// context adds task and registers at offset at and returns what follows them.
func (f *Fetcher) context(c *probe.Context, buf []byte, at int) int {
	if f.profile != nil {
		comm := buf[at : at+CommSize]
		clear(comm)
		pid, ok := f.profile.Task(c, comm)
		if !ok {
			clear(comm)
			pid = 0
		}
		le.PutUint32(buf[4:], uint32(pid))
		at += CommSize
	}
	if f.regs != 0 {
		putRegs(buf[at:], c.Regs)
		at += regsSize
	}
	return at
}

// capture adds the arguments.
func (f *Fetcher) capture(c *probe.Context, entry, buf []byte) int {
	w := writer{f: f, c: c, entry: entry, buf: buf, texts: f.texts}
	w.end = f.context(c, buf, f.status+len(f.ops))
	if f.args == returnArgs {
		le.PutUint64(buf[f.duration:], 0) // the source knows it
		w.end += 8
	}
	for i := range f.ops {
		buf[f.status+i] = w.arg(&f.ops[i])
	}
	return w.end
}

// eval computes an operand. Scratch has 8 bytes; they are the caller's because
// a local array that goes to Read would be allocated.
func (o *operand) eval(c *probe.Context, entry, scratch []byte) (v uint64, ok bool) {
	switch o.from {
	case fromReg:
		v = o.reg.value(c.Regs, c.CPL)
	case fromValue:
		v = o.value
	case fromWatch:
		v = watched(c, o.value)
	case fromEntry:
		slot := entry[o.value*entrySlot:]
		if v = le.Uint64(slot); slot[8] != 0 {
			return 0, false
		}
	}
	for _, off := range o.loads {
		if c.Read(guest.GVA(v+uint64(off)), scratch) != nil {
			return 0, false
		}
		v = le.Uint64(scratch)
	}
	return v, true
}

// writer is the state of one capture.
type writer struct {
	f     *Fetcher
	c     *probe.Context
	entry []byte
	buf   []byte
	end   int // of the record so far
	texts int // texts still to come, this one included
}

// arg stores one argument and returns its status byte.
func (w *writer) arg(o *op) byte {
	n := max(1, o.count)
	dst := w.buf[o.off : o.off+n*o.size]
	switch o.store {
	case storeLiteral:
		return putText(w, dst, o.literal)
	case storeComm:
		comm := w.buf[w.f.comm : w.f.comm+CommSize]
		if comm[0] == 0 {
			w.fault(dst)
			return 0
		}
		return putText(w, dst, commText(comm))
	}
	scratch := w.buf[w.f.max : w.f.max+8]
	v, ok := o.eval(w.c, w.entry, scratch)
	if !ok {
		clear(dst)
		if o.store == storeText || o.store == storeTexts {
			w.texts -= n
			return 0 // a data_loc without a length is a fault
		}
		return byte(n)
	}
	switch o.store {
	case storeValue:
		le.PutUint64(scratch, o.extract(v))
		copy(dst, scratch)
		return 0
	case storeMemory:
		return w.memory(o, v+uint64(o.last), dst)
	case storeText:
		return w.textAt(dst, v+uint64(o.last))
	}
	status := byte(0)
	for i := range n {
		p := guest.GVA(v + uint64(o.last) + uint64(8*i))
		if w.c.Read(p, scratch) != nil {
			w.fault(dst[4*i : 4*i+4])
			continue
		}
		status |= w.textAt(dst[4*i:4*i+4], le.Uint64(scratch))
	}
	return status
}

// commText returns a task's name without its padding.
func commText(comm []byte) []byte {
	if i := bytes.IndexByte(comm, 0); i >= 0 {
		return comm[:i]
	}
	return comm
}

// extract applies the bit field, if any.
func (o *op) extract(v uint64) uint64 {
	if o.bits {
		v = v >> o.shift & o.mask
	}
	return v
}

// memory stores what stands at addr: all of it in one read where possible,
// else the elements up to the first that faults.
func (w *writer) memory(o *op, addr uint64, dst []byte) (status byte) {
	if w.c.Read(guest.GVA(addr), dst) != nil {
		n := 0
		// The last one needs no second try.
		for n+o.size < len(dst) && w.c.Read(guest.GVA(addr+uint64(n)), dst[n:n+o.size]) == nil {
			n += o.size
		}
		clear(dst[n:])
		status = byte((len(dst) - n) / o.size)
	}
	if o.bits {
		for at := 0; at < len(dst); at += o.size {
			putSized(dst[at:at+o.size], o.extract(getSized(dst[at:at+o.size])))
		}
	}
	return status
}

// room returns where the next text goes: as much as a string may have, and at
// most what leaves one byte for each text still to come.
func (w *writer) room() []byte {
	w.texts--
	return w.buf[w.end:min(w.end+maxString, w.f.max-w.texts)]
}

// fault stores that a text could not be read: a data_loc without a length.
func (w *writer) fault(loc []byte) {
	w.texts--
	le.PutUint32(loc, 0)
}

// keep makes the n bytes behind the record's end part of it.
func (w *writer) keep(loc []byte, n int) {
	le.PutUint32(loc, uint32(n)<<16|uint32(w.end))
	w.end += n
}

// putText stores s and returns the status.
func putText[T string | []byte](w *writer, loc []byte, s T) byte {
	room := w.room()
	n := copy(room[:len(room)-1], s)
	room[n] = 0
	w.keep(loc, n+1)
	if n < len(s) {
		return statusCut
	}
	return 0
}

// textAt stores the text in memory at addr, or a fault when the guest cannot
// read it up to its NUL.
func (w *writer) textAt(loc []byte, addr uint64) byte {
	n, cut, ok := readText(w.c, addr, w.room())
	if !ok {
		le.PutUint32(loc, 0)
		return 0
	}
	w.keep(loc, n+1)
	if cut {
		return statusCut
	}
	return 0
}

// getSized and putSized access a little-endian number of 1, 2, 4 or 8 bytes.
func getSized(b []byte) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(le.Uint16(b))
	case 4:
		return uint64(le.Uint32(b))
	}
	return le.Uint64(b)
}

func putSized(b []byte, v uint64) {
	switch len(b) {
	case 1:
		b[0] = byte(v)
	case 2:
		le.PutUint16(b, uint16(v))
	case 4:
		le.PutUint32(b, uint32(v))
	default:
		le.PutUint64(b, v)
	}
}

// numRegsKept is the number of fields of probe.Regs; regsSize their bytes.
const (
	numRegsKept = 18
	regsSize    = 8 * numRegsKept
)

func putRegs(b []byte, r *probe.Regs) {
	for i, v := range [numRegsKept]uint64{
		r.RAX, r.RBX, r.RCX, r.RDX, r.RSI, r.RDI, r.RSP, r.RBP, r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.RIP, r.RFLAGS,
	} {
		le.PutUint64(b[8*i:], v)
	}
}

func getRegs(b []byte) (r probe.Regs) {
	for i, p := range [numRegsKept]*uint64{
		&r.RAX, &r.RBX, &r.RCX, &r.RDX, &r.RSI, &r.RDI, &r.RSP, &r.RBP, &r.R8, &r.R9, &r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15, &r.RIP, &r.RFLAGS,
	} {
		*p = le.Uint64(b[8*i:])
	}
	return r
}
