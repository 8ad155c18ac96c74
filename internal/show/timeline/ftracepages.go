package timeline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Pages of a trace.dat have the format of Linux's ring buffer
// (include/linux/ring_buffer.h): the time of the first event, the number of
// bytes in use, and events with the time since the one before.
const (
	pageSize   = 4096
	pageHeader = 16
	pageData   = pageSize - pageHeader

	deltaBits  = 27
	typeMax    = 28 // words of an event whose length is in its first word
	typeExtend = 30 // a longer time since the one before
	typeStamp  = 31 // an absolute time

	maxEvent = 2048 // bytes of an event
)

// pages stores the events of vCPUs as pages in an unnamed file until all are
// there.
type pages struct {
	file *os.File
	cpus []cpuPages
	n    uint32 // pages in the file
}

type cpuPages struct {
	page []byte // the page that is being filled, or nil
	last int64  // time of its last event
	in   []uint32
}

func newPages() (*pages, error) {
	f, err := os.CreateTemp("", "guestprobe-*")
	if err != nil {
		return nil, fmt.Errorf("a trace.dat is gathered in a file first: %w", err)
	}
	return &pages{file: f}, os.Remove(f.Name())
}

// add adds an event, of at most maxEvent bytes.
func (p *pages) add(cpu int, at int64, event []byte) error {
	for len(p.cpus) <= cpu {
		p.cpus = append(p.cpus, cpuPages{})
	}
	c := &p.cpus[cpu]
	words := (len(event) + 3) / 4
	if c.page != nil && len(c.page)+8+8+words*4 > pageSize {
		if err := p.flush(c); err != nil {
			return err
		}
	}
	if len(c.page) == 0 {
		if c.page == nil {
			c.page = make([]byte, 0, pageSize)
		}
		c.page = binary.LittleEndian.AppendUint64(c.page, uint64(at))
		c.page = binary.LittleEndian.AppendUint64(c.page, 0)
		c.last = at
	}
	delta := uint64(at - c.last)
	switch {
	case at < c.last:
		c.page = appendHeader(c.page, typeStamp, uint64(at)&(1<<deltaBits-1))
		c.page = binary.LittleEndian.AppendUint32(c.page, uint32(uint64(at)>>deltaBits))
		delta = 0
	case delta >= 1<<deltaBits:
		c.page = appendHeader(c.page, typeExtend, delta&(1<<deltaBits-1))
		c.page = binary.LittleEndian.AppendUint32(c.page, uint32(delta>>deltaBits))
		delta = 0
	}
	if words <= typeMax {
		c.page = appendHeader(c.page, uint32(words), delta)
	} else {
		c.page = appendHeader(c.page, 0, delta)
		c.page = binary.LittleEndian.AppendUint32(c.page, uint32(words*4+4))
	}
	c.page = append(append(c.page, event...), make([]byte, words*4-len(event))...)
	c.last = at
	return nil
}

func appendHeader(b []byte, of uint32, delta uint64) []byte {
	return binary.LittleEndian.AppendUint32(b, of|uint32(delta)<<5)
}

// flush writes the page of a vCPU to the file.
func (p *pages) flush(c *cpuPages) error {
	if len(c.page) == 0 {
		return nil
	}
	binary.LittleEndian.PutUint64(c.page[8:], uint64(len(c.page)-pageHeader))
	page := c.page[:pageSize]
	clear(page[len(c.page):])
	if _, err := p.file.Write(page); err != nil {
		return fmt.Errorf("a trace.dat is gathered in a file first: %w", err)
	}
	if p.n == 1<<32-1 {
		return errors.New("a trace.dat of 16 TiB")
	}
	c.in = append(c.in, p.n)
	p.n++
	c.page = c.page[:0]
	return nil
}

// end writes all remaining pages to the file.
func (p *pages) end() error {
	for i := range p.cpus {
		if err := p.flush(&p.cpus[i]); err != nil {
			return err
		}
	}
	return nil
}

// write writes the pages of one vCPU after the other.
func (p *pages) write(w io.Writer) error {
	var page [pageSize]byte
	for _, c := range p.cpus {
		for _, n := range c.in {
			if _, err := p.file.ReadAt(page[:], int64(n)*pageSize); err != nil {
				return err
			}
			if _, err := w.Write(page[:]); err != nil {
				return err
			}
		}
	}
	return nil
}
