package snapshot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
)

// The file: magic, version, and sections: a kind and a length of 8 bytes each, and the section's bytes. All
// numbers are little endian. The last section has the checksum of all that is before it, CRC-32C.
const (
	magic   = "GUESTPRB"
	version = 3
)

// Kinds of sections, in their order in the file.
const (
	kindConfig   = 1 + iota // Config as JSON
	kindCPUID               // kvm_cpuid_entry2, each
	kindBoard               // of a Linux kernel's machine
	kindCPU                 // one for each vCPU
	kindRun                 // address and bytes
	kindAttached            // Attached
	kindEnd                 // the checksum
)

// Bounds of the sections; a section with memory is one run.
const (
	maxConfig   = 1 << 20
	maxCPUID    = 64 << 10
	maxCPU      = 1 << 20
	maxAttached = 256 << 20
	maxMSRs     = 4096
)

// Errors of files. They are values: test with errors.Is.
var (
	// ErrNone: the file has something else.
	ErrNone = errors.New("it is no snapshot of a guest")

	// ErrCore: the file is an ELF file, from which no guest can resume; ReadELF
	// reads it. It wraps ErrNone.
	ErrCore = fmt.Errorf("%w to resume from: an ELF file can only be inspected (--core), if it is a core of 'guestprobe guest save --elf'", ErrNone)

	// ErrVersion: the file is one of another version of guestprobe.
	ErrVersion = fmt.Errorf("it has another format than this guestprobe, which reads version %d", version)

	// ErrTruncated: the file has ended too early.
	ErrTruncated = errors.New("it is truncated: its end is missing")

	// ErrDamaged: the file's contents have changed since it was written.
	ErrDamaged = errors.New("it is damaged")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cpuFixed is the beginning of a vCPU's section: all data that has the same size
// on every host.
type cpuFixed struct {
	Regs         kvm.Regs
	Sregs        kvm.Sregs
	Debug        kvm.DebugRegs
	Events       kvm.Events
	XCRs         kvm.XCRs
	State        kvm.MPState
	LAPIC        kvm.LAPIC
	Asleep, Tick bool
	MSRs         uint32 // that follow; the rest is the XSAVE area
}

// WriteTo writes the file. It returns w's errors.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	out := &writer{w: w}
	out.put([]byte(magic), binary.LittleEndian.AppendUint64(nil, version))
	config, err := json.Marshal(s.Config)
	if err != nil {
		return 0, fmt.Errorf("write snapshot: %w", err)
	}
	out.section(kindConfig, config)
	out.section(kindCPUID, encode(s.CPUID))
	if s.Config.Linux != nil {
		out.section(kindBoard, encode(&s.Board))
	}
	for i := range s.CPUs {
		c := &s.CPUs[i]
		fixed := encode(&cpuFixed{c.Regs, c.Sregs, c.Debug, c.Events, c.XCRs, c.State, c.LAPIC, c.Asleep, c.Tick, uint32(len(c.MSRs))})
		out.section(kindCPU, fixed, encode(c.MSRs), c.XSave)
	}
	for _, r := range s.Memory {
		out.section(kindRun, binary.LittleEndian.AppendUint64(nil, uint64(r.At)), r.Bytes)
	}
	if len(s.Attached) > 0 {
		out.section(kindAttached, s.Attached)
	}
	out.section(kindEnd, binary.LittleEndian.AppendUint32(nil, out.sum(kindEnd, 4)))
	return out.n, out.err
}

// encode writes values of one size.
func encode(v any) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

// writer writes sections, and computes the checksum.
type writer struct {
	w   io.Writer
	crc uint32
	n   int64
	err error
}

func (w *writer) put(parts ...[]byte) {
	for _, b := range parts {
		if w.err != nil {
			return
		}
		w.crc = crc32.Update(w.crc, castagnoli, b)
		n, err := w.w.Write(b)
		w.n, w.err = w.n+int64(n), err
	}
}

func header(kind, size int) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(kind)), uint64(size))
}

func (w *writer) section(kind int, parts ...[]byte) {
	size := 0
	for _, b := range parts {
		size += len(b)
	}
	w.put(header(kind, size))
	w.put(parts...)
}

// sum is the checksum up to the bytes of a section.
func (w *writer) sum(kind, size int) uint32 {
	return crc32.Update(w.crc, castagnoli, header(kind, size))
}

// Read reads a file of WriteTo. It uses no more memory for that than the size of
// the file and a MiB. limit bounds the guest's memory in it, in bytes. Errors
// wrap ErrNone, ErrVersion, ErrTruncated or ErrDamaged, or come from r.
func Read(r io.Reader, limit uint64) (*Snapshot, error) {
	in := &reader{r: r}
	s := new(Snapshot)
	if err := in.config(&s.Config); err != nil {
		return nil, err
	}
	for last := kindConfig; ; {
		kind, size, err := in.header()
		switch {
		case err != nil:
			return nil, err
		case kind < last || kind == last && kind != kindCPU && kind != kindRun:
			return nil, fmt.Errorf("%w: section %d after section %d", ErrDamaged, kind, last)
		}
		last = kind
		switch kind {
		case kindCPUID:
			err = in.cpuid(s, size)
		case kindBoard:
			var b []byte
			if b, err = in.bytes(size, binary.Size(s.Board)); err == nil {
				err = decode(b, &s.Board)
			}
		case kindCPU:
			err = in.cpu(s, size)
		case kindRun:
			err = in.run(s, size, &limit)
		case kindAttached:
			var b []byte
			b, err = in.bytes(size, maxAttached)
			s.Attached = b
		case kindEnd:
			sum := in.crc
			b, err := in.bytes(size, 4)
			switch {
			case err != nil:
				return nil, err
			case !isSum(b, sum):
				return nil, errSum
			case len(s.CPUs) != s.Config.VCPUs:
				return nil, fmt.Errorf("%w: %d of %d vCPUs", ErrDamaged, len(s.CPUs), s.Config.VCPUs)
			}
			return s, in.checkEnd()
		default:
			err = fmt.Errorf("%w: section %d", ErrDamaged, kind)
		}
		if err != nil {
			return nil, err
		}
	}
}

// ReadConfig reads the beginning of a file. Of the rest it only checks that it
// is complete and that nothing follows it. It returns the same errors as Read.
func ReadConfig(r io.ReadSeeker) (Config, error) {
	c, _, err := walk(&reader{r: r}, func(n int64) error {
		_, err := r.Seek(n, io.SeekCurrent)
		return err
	})
	return c, err
}

// Check is ReadConfig for a file that will be used: it also checks the checksum
// over all bytes, without keeping them.
func Check(r io.Reader) (Config, error) {
	in := &reader{r: r}
	part := make([]byte, 1<<20)
	c, sums, err := walk(in, func(n int64) error {
		for n > 0 {
			b := part[:min(n, int64(len(part)))]
			if _, err := io.ReadFull(r, b); err != nil {
				return err
			}
			in.crc = crc32.Update(in.crc, castagnoli, b)
			n -= int64(len(b))
		}
		return nil
	})
	if err == nil && !sums {
		err = errSum
	}
	return c, err
}

// walk reads the configuration, and skips the rest by calling skip. sums reports
// whether the checksum matches.
func walk(in *reader, skip func(int64) error) (c Config, sums bool, err error) {
	if err := in.config(&c); err != nil {
		return c, false, err
	}
	for {
		kind, size, err := in.header()
		switch {
		case err != nil:
			return c, false, err
		case kind == kindEnd:
			sum := in.crc
			b, err := in.bytes(size, 4)
			if err != nil {
				return c, false, err
			}
			return c, isSum(b, sum), in.checkEnd()
		case size > maxAttached:
			return c, false, fmt.Errorf("%w: a section has %d bytes", ErrDamaged, size)
		}
		if err := skip(int64(size)); err != nil {
			return c, false, readError(err)
		}
	}
}

// errSum is the error for a file with a wrong checksum.
var errSum = fmt.Errorf("%w: its checksum is not that of its bytes", ErrDamaged)

// isSum reports whether the last section of a file has that checksum.
func isSum(b []byte, sum uint32) bool { return len(b) == 4 && binary.LittleEndian.Uint32(b) == sum }

// reader reads sections, and computes the checksum.
type reader struct {
	r   io.Reader
	crc uint32
}

// bytes reads n bytes, and fails if n is larger than limit.
func (r *reader) bytes(n uint64, limit int) ([]byte, error) {
	if n > uint64(limit) {
		return nil, fmt.Errorf("%w: a section has %d bytes, more than %d", ErrDamaged, n, limit)
	}
	var b []byte
	if n <= runSize+8 {
		b = make([]byte, n)
		if _, err := io.ReadFull(r.r, b); err != nil {
			return nil, readError(err)
		}
	} else {
		// Uses as much memory as there are bytes, whatever the length says.
		var buf bytes.Buffer
		if _, err := io.CopyN(&buf, r.r, int64(n)); err != nil {
			return nil, readError(err)
		}
		b = buf.Bytes()
	}
	r.crc = crc32.Update(r.crc, castagnoli, b)
	return b, nil
}

// readError is the error of a file that ends, as others are.
func readError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTruncated
	}
	return fmt.Errorf("read snapshot: %w", err)
}

// checkEnd checks that the file ends after its last section.
func (r *reader) checkEnd() error {
	switch _, err := r.bytes(1, 1); {
	case err == nil:
		return fmt.Errorf("%w: it has data after its end", ErrDamaged)
	case err != ErrTruncated:
		return err
	}
	return nil
}

func (r *reader) header() (kind int, size uint64, err error) {
	b, err := r.bytes(16, 16)
	if err != nil {
		return 0, 0, err
	}
	k := binary.LittleEndian.Uint64(b)
	return int(min(k, kindEnd+1)), binary.LittleEndian.Uint64(b[8:]), nil
}

// config reads the beginning of a file.
func (r *reader) config(c *Config) error {
	b, err := r.bytes(uint64(len(magic)), len(magic))
	switch {
	case err == nil && string(b[:len(elf.ELFMAG)]) == elf.ELFMAG:
		return ErrCore
	case err == nil && string(b) != magic:
		if what, _ := guest.FileKind(b); what != "" {
			return fmt.Errorf("%w, but %s", ErrNone, what)
		}
		return ErrNone
	case errors.Is(err, ErrTruncated):
		return ErrNone
	case err != nil:
		return err
	}
	if b, err = r.bytes(8, 8); err != nil {
		return err
	}
	if v := binary.LittleEndian.Uint64(b); v != version {
		return fmt.Errorf("version %d: %w", v, ErrVersion)
	}
	kind, size, err := r.header()
	if err != nil {
		return err
	}
	if kind != kindConfig {
		return fmt.Errorf("%w: it begins with section %d", ErrDamaged, kind)
	}
	if b, err = r.bytes(size, maxConfig); err != nil {
		return err
	}
	if err := json.Unmarshal(b, c); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if c.VCPUs < 1 || c.VCPUs > guest.MaxVCPUs || c.Memory == 0 || c.Memory%guest.PageSize != 0 || c.Memory > guest.MaxRAM || c.Tables < 0 || len(c.Cmdline) > guest.MaxCmdline {
		return fmt.Errorf("%w: it is of a guest that cannot be", ErrDamaged)
	}
	left, end := c.Memory+guest.LoaderSize, guest.GPA(0)
	for _, g := range c.RAM {
		if g.Base < end || g.Base%guest.PageSize != 0 || g.Size == 0 || g.Size%guest.PageSize != 0 || g.Size > left || uint64(g.Base) > 1<<52 {
			return fmt.Errorf("%w: memory at %v", ErrDamaged, g.Base)
		}
		left, end = left-g.Size, g.Base+guest.GPA(g.Size)
	}
	return nil
}

func (r *reader) cpuid(s *Snapshot, size uint64) error {
	b, err := r.bytes(size, maxCPUID)
	if err != nil {
		return err
	}
	s.CPUID = make([]kvm.CPUIDEntry, len(b)/binary.Size(kvm.CPUIDEntry{}))
	return decode(b, s.CPUID)
}

// decode reads values of one size, which is that of b.
func decode(b []byte, v any) error {
	if len(b) != binary.Size(v) {
		return fmt.Errorf("%w: a section has %d bytes in place of %d", ErrDamaged, len(b), binary.Size(v))
	}
	if _, err := binary.Decode(b, binary.LittleEndian, v); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

func (r *reader) cpu(s *Snapshot, size uint64) error {
	b, err := r.bytes(size, maxCPU)
	if err != nil {
		return err
	}
	var f cpuFixed
	n := binary.Size(f)
	if len(b) < n {
		return fmt.Errorf("%w: a vCPU has %d bytes", ErrDamaged, len(b))
	}
	if err := decode(b[:n], &f); err != nil {
		return err
	}
	b = b[n:]
	size16 := binary.Size(kvm.MSR{})
	if f.MSRs > maxMSRs || int(f.MSRs)*size16 > len(b) {
		return fmt.Errorf("%w: a vCPU has %d MSRs", ErrDamaged, f.MSRs)
	}
	c := CPU{
		Regs: f.Regs, Sregs: f.Sregs, Debug: f.Debug, Events: f.Events, XCRs: f.XCRs, State: f.State, LAPIC: f.LAPIC, Asleep: f.Asleep, Tick: f.Tick,
		MSRs: make([]kvm.MSR, f.MSRs),
	}
	if err := decode(b[:int(f.MSRs)*size16], c.MSRs); err != nil {
		return err
	}
	c.XSave = b[int(f.MSRs)*size16:]
	if s.CPUs = append(s.CPUs, c); len(s.CPUs) > s.Config.VCPUs {
		return fmt.Errorf("%w: more than %d vCPUs", ErrDamaged, s.Config.VCPUs)
	}
	return nil
}

func (r *reader) run(s *Snapshot, size uint64, limit *uint64) error {
	b, err := r.bytes(size, runSize+8)
	if err != nil {
		return err
	}
	n := uint64(max(len(b)-8, 0))
	if n == 0 || n%guest.PageSize != 0 || n > *limit {
		return fmt.Errorf("%w: %d bytes of memory in a row, of %d that the guest has left", ErrDamaged, n, *limit)
	}
	*limit -= n
	run := Run{At: guest.GPA(binary.LittleEndian.Uint64(b)), Bytes: b[8:]}
	if last := len(s.Memory) - 1; run.At%guest.PageSize != 0 || run.At+guest.GPA(n) < run.At || last >= 0 && run.At < s.Memory[last].At+guest.GPA(len(s.Memory[last].Bytes)) {
		return fmt.Errorf("%w: memory at %v is out of order", ErrDamaged, run.At)
	}
	s.Memory = append(s.Memory, run)
	return nil
}
