package device

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

const version1 = 1 << 32

// newImage makes a disk image in which sector n is filled with n+1.
func newImage(t testing.TB, sectors int) string {
	t.Helper()
	var b []byte
	for i := range sectors {
		b = append(b, bytes.Repeat([]byte{byte(i + 1)}, 512)...)
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newDriver makes a board and returns the driver of its device with this number: disks first, then the
// console and the entropy device.
func newDriver(t *testing.T, n int, change func(*Config)) *driver {
	t.Helper()
	ram, mem := newRAM(t)
	p, l := board(t, func(c *Config) {
		c.RAM = ram
		if change != nil {
			change(c)
		}
	})
	return &driver{t: t, p: p, l: l, n: n, mem: mem}
}

// What a driver asks before it takes a device, and what it may not take.
func TestVirtioNegotiation(t *testing.T) {
	d := newDriver(t, 0, func(c *Config) { c.Disks = []Disk{{Path: newImage(t, 4)}, {Path: newImage(t, 1), ReadOnly: true}} })
	for n, want := range []struct {
		kind, queues uint32
		features     uint64
	}{
		{2, 1, version1 | 1<<1 | 1<<2 | 1<<6 | 1<<9}, // SIZE_MAX, SEG_MAX, BLK_SIZE, FLUSH
		{2, 1, version1 | 1<<1 | 1<<2 | 1<<5 | 1<<6 | 1<<9},
		{3, 2, version1},
		{4, 1, version1},
	} {
		d.n = n
		if d.get(0) != 0x74726976 || d.get(4) != 2 || d.get(8) != want.kind || d.get(0xfc) != 0 || d.get(0xb0) != 0xffffffff {
			t.Errorf("device %d: magic %#x, version %d, kind %d", n, d.get(0), d.get(4), d.get(8))
		}
		if got := d.offeredFeatures(); got != want.features {
			t.Errorf("device %d offers %#x, want %#x", n, got, want.features)
		}
		for q := range want.queues + 1 {
			d.set(0x30, q)
			if got, want := d.get(0x34) != 0, q < want.queues; got != want {
				t.Errorf("device %d, queue %d: there %v, want %v", n, q, got, want)
			}
		}
		for _, f := range []uint64{0, want.features &^ version1, want.features | 1<<28, want.features | 1<<34} {
			if d.negotiate(f) {
				t.Errorf("device %d takes features %#x", n, f)
			}
			if d.set(0x70, 0xf); d.get(0x70)&0xc != 0 {
				t.Errorf("device %d is up without features: status %#x", n, d.get(0x70))
			}
		}
		if d.set(0x70, 0); !d.negotiate(want.features) || d.get(0x70) != 0xb {
			t.Errorf("device %d refuses its own features, status %#x", n, d.get(0x70))
		}
	}
	var b [4]byte
	if d.p.Read(0xfeb04000, b[:]) || b != [4]byte{0xff, 0xff, 0xff, 0xff} || d.p.Write(0xfeb04000, b[:]) || d.p.Write(0xfeafffff, b[:]) {
		t.Error("there is a fifth device")
	}
	// The tables describe them.
	dsdt := readTables(t, d.p.Tables())["DSDT"].body
	if n := bytes.Count(dsdt, []byte("LNRO0005")); n != 4 {
		t.Errorf("the tables describe %d virtio devices", n)
	}
	for n := range 4 {
		mem := binary.LittleEndian.AppendUint32([]byte{0x86, 9, 0, 1}, uint32(0xfeb00000+n*0x1000))
		mem = append(mem, 0, 0x10, 0, 0)
		if at := bytes.Index(dsdt, mem); at < 0 || !bytes.HasPrefix(dsdt[at+len(mem):], []byte{0x89, 6, 0, 1, 1, byte(16 + n), 0, 0, 0, 0x79}) {
			t.Errorf("device %d is not described", n)
		}
	}
}

func TestRNG(t *testing.T) {
	d := newDriver(t, 1, nil)
	d.bringUp(version1, 1, queueMax)
	for range 2 * queueMax {
		d.data = dataAt
		clear(d.mem[dataAt : dataAt+200])
		room, n := d.do(0, nil, 100, 30)
		if n != 130 || bytes.Equal(room[0], make([]byte, 100)) || bytes.Equal(room[1], make([]byte, 30)) {
			t.Fatalf("%d bytes % x % x", n, room[0][:8], room[1][:8])
		}
	}
	if room, n := d.do(0, nil, 100<<10); n != 64<<10 || room[0][64<<10] != 0 {
		t.Errorf("%d bytes of a request for 100 KiB", n)
	}
}

func TestHVC(t *testing.T) {
	var out bytes.Buffer
	d := newDriver(t, 0, func(c *Config) { c.HVC = func(b []byte) { out.Write(b) } })
	d.bringUp(version1, 2, queueMax)
	if _, n := d.do(1, [][]byte{[]byte("hello, "), []byte("host")}); n != 0 || out.String() != "hello, host" {
		t.Errorf("%d bytes written; the host got %q", n, out.String())
	}
	// Buffers wait for input, and input for buffers.
	room := d.add(0, nil, []int{4, 4})
	d.notify(0)
	if _, err := d.p.Input(patience.Context(t), HVC, []byte("hello, guest")); err != nil {
		t.Fatal(err)
	}
	if _, n := d.awaitAnswer(0); n != 8 || string(room[0])+string(room[1]) != "hello, g" {
		t.Errorf("%d bytes: %q", n, room)
	}
	if room, n := d.do(0, nil, 64); n != 4 || string(room[0][:4]) != "uest" {
		t.Errorf("%d bytes: %q", n, room)
	}
}

// What no driver may put into a queue stops the device until it is reset, and tells the
// driver so; nothing else happens, and behind the reset the device works.
func TestMalformedQueue(t *testing.T) {
	const avail = ringAt + availAt
	for _, tt := range []struct {
		name string
		make func(d *driver)
	}{
		{"a loop", func(d *driver) { d.desc(0, 0, dataAt, 8, 3, 1); d.desc(0, 1, dataAt, 8, 3, 0); d.offer(0, 0) }},
		{"head outside", func(d *driver) { d.offer(0, 32) }},
		{"next outside", func(d *driver) { d.desc(0, 0, dataAt, 8, 3, 32); d.offer(0, 0) }},
		{"memory behind the last", func(d *driver) { d.desc(0, 0, ramSize-4, 8, 2, 0); d.offer(0, 0) }},
		{"memory nowhere", func(d *driver) { d.desc(0, 0, 1<<40, 8, 2, 0); d.offer(0, 0) }},
		{"memory around the end", func(d *driver) { d.desc(0, 0, 1<<64-4, 8, 2, 0); d.offer(0, 0) }},
		{"more than a request has", func(d *driver) {
			for i := range 17 {
				d.desc(0, i, 0, ramSize, 3, uint16(i+1))
			}
			d.desc(0, 17, 0, 1, 2, 0)
			d.offer(0, 0)
		}},
		{"to read behind to write", func(d *driver) { d.desc(0, 0, dataAt, 8, 3, 1); d.desc(0, 1, dataAt, 8, 0, 0); d.offer(0, 0) }},
		{"indirect", func(d *driver) { d.desc(0, 0, dataAt, 16, 4, 0); d.offer(0, 0) }},
		{"too many requests", func(d *driver) { d.put16(avail+2, 33) }},
		{"requests go back", func(d *driver) { d.put16(avail+2, 0xffff) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDriver(t, 1, nil)
			d.bringUp(version1, 1, 32)
			tt.make(d)
			// All but the word that says whether notifications are of use.
			const used = ringAt + usedAt - 4
			before := append(bytes.Clone(d.mem[:used]), d.mem[used+8:]...)
			d.notify(0)
			d.l.wait(t, d.line())
			if d.get(0x60) != 2 || d.get(0x70) != 0x4f {
				t.Errorf("interrupt status %#x, status %#x", d.get(0x60), d.get(0x70))
			}
			if !bytes.Equal(append(bytes.Clone(d.mem[:used]), d.mem[used+8:]...), before) {
				t.Error("memory was changed")
			}
			d.bringUp(version1, 1, queueMax)
			if d.l.high(d.line()) {
				t.Error("the line is high behind a reset")
			}
			if _, n := d.do(0, nil, 16); n != 16 {
				t.Errorf("%d bytes behind a reset", n)
			}
		})
	}
}

// A queue that cannot be is refused when it is set up.
func TestBadQueue(t *testing.T) {
	for _, tt := range []struct {
		size              uint32
		desc, avail, used uint64
		ok                bool
	}{
		{8, 0x1000, 0x2000, 0x3000, true},
		{128, ramSize - 2048, 0x2002, 0x3004, true},
		{128, 0x1000, ramSize - 260, 0x3000, true},
		{128, 0x1000, 0x2000, ramSize - 1028, true},
		{0, 0x1000, 0x2000, 0x3000, false},
		{3, 0x1000, 0x2000, 0x3000, false},
		{256, 0x1000, 0x2000, 0x3000, false},
		{1<<16 + 8, 0x1000, 0x2000, 0x3000, false},
		{8, 0x1008, 0x2000, 0x3000, false},
		{8, 0x1000, 0x2001, 0x3000, false},
		{8, 0x1000, 0x2000, 0x3002, false},
		{128, ramSize - 2032, 0x2000, 0x3000, false},
		{128, 0x1000, ramSize - 258, 0x3000, false},
		{128, 0x1000, 0x2000, ramSize - 1024, false},
		{8, 0x1000, 0x2000, 1 << 52, false},
		{8, 1<<64 - 128, 0x2000, 0x3000, false},
	} {
		t.Run(fmt.Sprintf("%d,%#x,%#x,%#x", tt.size, tt.desc, tt.avail, tt.used), func(t *testing.T) {
			d := newDriver(t, 1, nil)
			d.negotiate(version1)
			d.set(0x30, 0)
			d.set(0x38, tt.size)
			for reg, at := range map[int]uint64{0x80: tt.desc, 0x90: tt.avail, 0xa0: tt.used} {
				d.set(reg, uint32(at))
				d.set(reg+4, uint32(at>>32))
			}
			d.set(0x44, 1)
			if ready, broken := d.get(0x44) == 1, d.get(0x70)&0x40 != 0; ready != tt.ok || broken == tt.ok {
				t.Errorf("ready %v, needs reset %v", ready, broken)
			}
		})
	}
}

// A driver that wants no interrupts gets none; registers of other widths do nothing; a queue that was taken
// down is served no more.
func TestVirtioQuiet(t *testing.T) {
	d := newDriver(t, 1, nil)
	d.bringUp(version1, 1, queueMax)
	d.put16(ringAt+availAt, 1) // VIRTQ_AVAIL_F_NO_INTERRUPT
	d.add(0, nil, []int{16})
	d.notify(0)
	d.set(0x44, 0) // waits for what is being served
	if d.get(0x44) != 0 || d.l.riseCount(d.line()) != 0 || d.get(0x60) != 0 {
		t.Errorf("ready %d, %d interrupts, status %#x", d.get(0x44), d.l.riseCount(d.line()), d.get(0x60))
	}
	b := [8]byte{1, 1, 1, 1, 1, 1, 1, 1}
	for _, n := range []int{1, 2, 8} {
		if at := guest.GPA(0xfeb01000); !d.p.Read(at, b[:n]) || b[0] != 0 || !d.p.Write(at+0x70, b[:n]) || d.get(0x70) != 0xf {
			t.Errorf("%d bytes: read % x, status %#x", n, b[:n], d.get(0x70))
		}
	}
}
