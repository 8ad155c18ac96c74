package device

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// FuzzPorts has a hostile guest touch any port in any width and order: nothing panics, and what no
// device answers is all ones.
func FuzzPorts(f *testing.F) {
	f.Add([]byte{0xf8, 0x03, 1, 'x', 0xf9, 0x03, 0x81, 0})
	f.Add([]byte{0x04, 0x06, 2, 0, 0x34, 0xff, 0x03, 4, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, _ := board(t, func(c *Config) {
			c.Serial = func([]byte) {}
			c.PowerOff, c.Reset = func() {}, func() {}
		})
		for len(b) > 3 {
			port, size := uint16(b[0])|uint16(b[1])<<8, 1<<(b[2]&3)
			read := b[2]&0x80 != 0
			size = min(size, 4)
			b = b[3:]
			data := make([]byte, size)
			n := copy(data, b)
			if !read {
				p.Out(port, data)
				b = b[n:]
				continue
			}
			if !p.In(port, data) {
				for _, x := range data {
					if x != 0xff {
						t.Fatalf("port %#x of nobody reads as % x", port, data)
					}
				}
			}
		}
	})
}

// FuzzVirtio has a hostile driver write registers and its memory in any order. Whatever it does,
// nothing panics, requests come to an end, and memory beside the guest's stays as it was.
func FuzzVirtio(f *testing.F) {
	up := []byte{0x70, 0, 0, 0, 0, 0x24, 0, 1, 0, 0, 0, 0x20, 0, 1, 0, 0, 0, 0x70, 0, 15, 0, 0, 0}
	f.Add(uint8(0), up, []byte{})
	f.Add(uint8(1), up, bytes.Repeat([]byte{0x00, 0x08, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 3, 0, 1, 0}, 8))
	path := newImage(f, 8)
	f.Fuzz(func(t *testing.T, device uint8, writes, rings []byte) {
		const page, pages = 4096, 8
		host := make([]byte, (pages+2)*page) // the guest's memory with a page before and one behind
		guard := bytes.Repeat([]byte{0xa5}, page)
		copy(host, guard)
		copy(host[(pages+1)*page:], guard)
		ram, closed := new(guest.Memory), make(chan struct{})
		if err := ram.Add(page, host[page:(pages+1)*page], "ram"); err != nil {
			t.Fatal(err)
		}
		disk, err := openDisk(Disk{Path: path}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer disk.close()
		h := &hvc{input: input{closed: closed, came: func() {}}}
		h.input.bytes = []byte("some input for the guest")
		m := []model{disk, h, rng{}, h}[device%4]
		v := newVirtio(m, ram, newLine(func(uint32, bool) {}, 16), closed)
		close(closed) // the requests are served here, one after the other
		<-v.ended
		set := func(at uint64, x uint32) { v.write(at, binary.LittleEndian.AppendUint32(nil, x)) }
		for i := range uint32(2) {
			set(regQueueSel, i)
			set(regQueueNum, 8)
			set(regDesc, page+i*3*page)
			set(regAvail, 2*page+i*3*page)
			set(regUsed, 3*page+i*3*page)
			set(regQueueReady, 1)
		}
		// What the rings hold: descriptors, then entries of the driver's ring, of which all are new.
		for q := range 2 {
			at := page + q*3*page
			n := copy(host[at:at+8*descSize], rings)
			copy(host[at+page+4:at+page+4+16], rings[n:])
			host[at+page+2] = 8
		}
		for len(writes) >= 5 {
			at := uint64(writes[0])
			if writes[0] == 0xff { // the configuration
				at = regConfig + uint64(writes[1])
			}
			set(at, binary.LittleEndian.Uint32(writes[1:]))
			var b [8]byte
			v.read(at, b[:4])
			v.read(at, b[:1<<(writes[2]&3)])
			writes = writes[5:]
			for q := range v.queues {
				for n := 0; v.serve(q); n++ {
					if n > 1<<16 {
						t.Fatal("requests without end")
					}
				}
			}
		}
		if !bytes.Equal(host[:page], guard) || !bytes.Equal(host[(pages+1)*page:], guard) {
			t.Fatal("a device wrote beside the guest's memory")
		}
	})
}
